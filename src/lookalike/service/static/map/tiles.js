// Small pictures in place of points, once few enough are in view: tiles of 8 × 8 cells, the oldest dropped.

import { span, toMap, toScreen } from "./buffer.js";

const CELLS = 8;
const SIDE = 64;
const KEPT = 12;
const DEEPEST = 14;

/** @param {number} gen @param {() => void} arrived */
export function tiles(gen, arrived) {
  /** @type {Map<string, {image: HTMLImageElement, since: number}>} */
  const kept = new Map();

  /** @param {number} z @param {number} x @param {number} y */
  function tile(z, x, y) {
    const address = `/api/v1/map/${gen}/tile/${z}/${x}/${y}.jpg`;
    let found = kept.get(address);
    if (!found) {
      const image = new Image();
      found = { image, since: 0 };
      const mine = found;
      image.onload = () => { mine.since = performance.now(); arrived(); };
      image.src = address;
    }
    kept.delete(address);
    kept.set(address, found);
    while (kept.size > KEPT) kept.delete(kept.keys().next().value ?? "");
    return found;
  }

  /**
   * @param {CanvasRenderingContext2D} context in CSS pixels @param {import("./buffer.js").Cloud} cloud
   * @param {import("./buffer.js").Eye} eye @param {number[]} points those in view @param {boolean} still without fading
   * @returns {boolean} whether something is still fading in
   */
  function draw(context, cloud, eye, points, still) {
    const z = Math.min(Math.max(Math.round(Math.log2(span(eye) / (CELLS * SIDE))), 0), DEEPEST);
    const cells = 2 ** z * CELLS;
    const [left, top] = toMap(eye, 0, 0).map((v) => Math.floor(v * 2 ** z));
    const [right, bottom] = toMap(eye, eye.width, eye.height).map((v) => Math.floor(v * 2 ** z));
    if ((right - left + 1) * (bottom - top + 1) > KEPT) return false;
    const size = span(eye) / cells;
    const seen = new Set();
    let fading = false;
    for (const i of points) {
      const cx = Math.min(Math.floor((cloud.x[i] / 65535) * cells), cells - 1);
      const cy = Math.min(Math.floor((cloud.y[i] / 65535) * cells), cells - 1);
      if (seen.has(cy * cells + cx)) continue;
      seen.add(cy * cells + cx);
      const { image, since } = tile(z, Math.floor(cx / CELLS), Math.floor(cy / CELLS));
      if (!since) continue;
      const age = (performance.now() - since) / 120;
      context.globalAlpha = still ? 1 : Math.min(age, 1);
      if (age < 1 && !still) fading = true;
      const [px, py] = toScreen(eye, cx / cells, cy / cells);
      context.drawImage(image, (cx % CELLS) * SIDE, (cy % CELLS) * SIDE, SIDE, SIDE, px + 1, py + 1, size - 2, size - 2);
    }
    context.globalAlpha = 1;
    return fading;
  }
  return { draw };
}
