// Small images in place of points, once few enough are in view: tiles of 8 × 8 cells, the oldest dropped.

import { span, toMap, toScreen } from "./buffer.js";

const CELLS = 8;
const SIDE = 64;
const KEPT = 12;
const DEEPEST = 14;

/** Points in view, at most some, in the map's order. */
export function inView(cloud, eye, most) {
  const [left, top] = toMap(eye, 0, 0).map((v) => v * 65535);
  const [right, bottom] = toMap(eye, eye.width, eye.height).map((v) => v * 65535);
  const found = [];
  for (let i = 0; i < cloud.n && found.length < most; i++) {
    if (cloud.x[i] >= left && cloud.x[i] <= right && cloud.y[i] >= top && cloud.y[i] <= bottom) found.push(i);
  }
  return found;
}

export function tiles(gen, arrived) {
  const kept = new Map();

  function tile(z, x, y) {
    const address = `/api/v1/map/${gen}/tile/${z}/${x}/${y}.jpg`;
    let found = kept.get(address);
    if (!found) {
      const image = new Image();
      const mine = (found = { image, since: 0 });
      image.onload = () => { mine.since = performance.now(); arrived(); };
      image.onerror = () => setTimeout(() => { kept.delete(address); arrived(); }, 4000); // asked for again
      image.src = address;
    }
    kept.delete(address);
    kept.set(address, found);
    while (kept.size > KEPT) kept.delete(kept.keys().next().value ?? "");
    return found;
  }

  /** The cells that points lie in at a depth, and how many tiles hold them. */
  function cells(cloud, points, z) {
    const most = 2 ** z * CELLS;
    const found = new Map();
    for (const i of points) {
      const [cx, cy] = [cloud.x[i], cloud.y[i]].map((v) => Math.min(Math.floor((v / 65535) * most), most - 1));
      found.set(cy * most + cx, [cx, cy]);
    }
    const held = new Set([...found.values()].map(([cx, cy]) => `${Math.floor(cx / CELLS)} ${Math.floor(cy / CELLS)}`));
    return { places: [...found.values()], tiles: held.size };
  }

  /** In CSS pixels, the points in view, `still` without fading; whether something is still fading in. */
  function draw(context, cloud, eye, points, still) {
    let z = Math.min(Math.max(Math.round(Math.log2(span(eye) / (CELLS * SIDE))), 0), DEEPEST);
    let shown = cells(cloud, points, z);
    // A wide screen would need more tiles than are kept: then larger ones.
    while (shown.tiles > KEPT) shown = cells(cloud, points, --z);
    const size = span(eye) / (2 ** z * CELLS);
    shelf.size = size;
    let fading = false;
    for (const [cx, cy] of shown.places) {
      const { image, since } = tile(z, Math.floor(cx / CELLS), Math.floor(cy / CELLS));
      if (!since) continue;
      const age = (performance.now() - since) / 120;
      context.globalAlpha = still ? 1 : Math.min(age, 1);
      if (age < 1 && !still) fading = true;
      const [px, py] = toScreen(eye, cx / (2 ** z * CELLS), cy / (2 ** z * CELLS));
      context.drawImage(image, (cx % CELLS) * SIDE, (cy % CELLS) * SIDE, SIDE, SIDE, px + 1, py + 1, size - 2, size - 2);
    }
    context.globalAlpha = 1;
    return fading;
  }
  const shelf = { draw, gen, size: 0 };
  return shelf;
}
