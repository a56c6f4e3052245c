// The map's binary format (a 64-byte header, then 8 bytes per image) and the viewport.

/**
 * @typedef {{n: number, gen: number, x: Uint16Array, y: Uint16Array, label: Uint16Array, codes: Uint16Array,
 *            mask: Uint8Array | null}} Cloud  `codes` set the colors, the most frequent value is 0
 */

export const NONE = 65535;
export const COLORS = [
  "#0072b2",
  "#c85400",
  "#00875f",
  "#b8578f",
  "#9a7500",
  "#3b8fc7",
  "#8a5fc7",
  "#cf4444",
  "#62871f",
  "#94714a",
  "#1f8f88",
  "#777777",
];

/** @param {ArrayBuffer} data @returns {Cloud} */
export function parsePoints(data) {
  const head = new DataView(data);
  const magic = String.fromCharCode(...new Uint8Array(data, 0, 4));
  if (magic !== "LKMP" || head.getUint16(4, true) !== 1) throw new Error("This is not a map this page can read.");
  const start = head.getUint16(6, true);
  const n = head.getUint32(8, true);
  const size = head.getUint32(32, true);
  const x = new Uint16Array(n);
  const y = new Uint16Array(n);
  const label = new Uint16Array(n);
  const raw = new Uint16Array(data, start, (n * size) / 2); // all platforms with browsers are little-endian
  for (let i = 0, at = 0; i < n; i++, at += size / 2) {
    x[i] = raw[at];
    y[i] = raw[at + 1];
    label[i] = raw[at + 3];
  }
  return { n, gen: head.getUint32(12, true), x, y, label, codes: label, mask: null };
}

/**
 * The visible part of the map: its center from 0 to 1, the zoom factor, and the size in pixels.
 * @typedef {{x: number, y: number, zoom: number, width: number, height: number}} Viewport
 */

/** Width of the whole map in pixels. */
export const mapWidth = (viewport) => Math.min(viewport.width, viewport.height) * viewport.zoom;
export const toScreen = (viewport, x, y) => [
  (x - viewport.x) * mapWidth(viewport) + viewport.width / 2,
  (y - viewport.y) * mapWidth(viewport) + viewport.height / 2,
];
export const toMap = (viewport, px, py) => [
  (px - viewport.width / 2) / mapWidth(viewport) + viewport.x,
  (py - viewport.height / 2) / mapWidth(viewport) + viewport.y,
];

/** Keep the center on the map and the zoom in range. */
export function clampViewport(viewport) {
  viewport.zoom = Math.min(Math.max(viewport.zoom, 0.8), 4096);
  viewport.x = Math.min(Math.max(viewport.x, 0), 1);
  viewport.y = Math.min(Math.max(viewport.y, 0), 1);
  return viewport;
}
