// The map's columns, as they come over the wire: a header of 64 bytes, then 8 bytes an image.

/**
 * @typedef {{n: number, gen: number, x: Uint16Array, y: Uint16Array, label: Uint16Array, codes: Uint16Array,
 *            mask: Uint8Array | null}} Cloud  `codes` are what colors it, the most frequent value first
 */

export const NONE = 65535;
export const COLORS = ["#0072b2", "#c85400", "#00875f", "#b8578f", "#9a7500", "#3b8fc7", "#8a5fc7", "#cf4444", "#62871f",
  "#94714a", "#1f8f88", "#777777"];

/** @param {ArrayBuffer} data @returns {Cloud} */
export function parse(data) {
  const head = new DataView(data);
  const magic = String.fromCharCode(...new Uint8Array(data, 0, 4));
  if (magic !== "LKMP" || head.getUint16(4, true) !== 1) throw new Error("This is not a map this page can read.");
  const start = head.getUint16(6, true);
  const n = head.getUint32(8, true);
  const size = head.getUint32(32, true);
  const x = new Uint16Array(n);
  const y = new Uint16Array(n);
  const label = new Uint16Array(n);
  const raw = new Uint16Array(data, start, (n * size) / 2); // every browser's machine has the low byte first
  for (let i = 0, at = 0; i < n; i++, at += size / 2) {
    x[i] = raw[at];
    y[i] = raw[at + 1];
    label[i] = raw[at + 3];
  }
  return { n, gen: head.getUint32(12, true), x, y, label, codes: label, mask: null };
}

/**
 * Where the map is looked at from: the middle, from 0 to 1, and how many times the whole is enlarged.
 * @typedef {{x: number, y: number, zoom: number, width: number, height: number}} Eye
 */

/** Pixels that the whole map is wide. */
export const span = (eye) => Math.min(eye.width, eye.height) * eye.zoom;
export const toScreen = (eye, x, y) => [(x - eye.x) * span(eye) + eye.width / 2, (y - eye.y) * span(eye) + eye.height / 2];
export const toMap = (eye, px, py) => [(px - eye.width / 2) / span(eye) + eye.x, (py - eye.height / 2) / span(eye) + eye.y];

/** Nobody gets lost: the middle stays on the map, the zoom within reason. */
export function hold(eye) {
  eye.zoom = Math.min(Math.max(eye.zoom, 0.8), 4096);
  eye.x = Math.min(Math.max(eye.x, 0), 1);
  eye.y = Math.min(Math.max(eye.y, 0), 1);
  return eye;
}
