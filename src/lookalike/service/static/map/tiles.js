// Thumbnails in place of points when few are in view: tiles of 8 × 8 cells, least recently used dropped.

import { mapWidth, toMap, toScreen } from "./points.js";

const CELLS = 8;
const SIDE = 64;
const MAX_TILES = 12;
const MAX_DEPTH = 14;

/** Indices of points in view, at most `most`. */
export function inView(cloud, viewport, most) {
  const [left, top] = toMap(viewport, 0, 0).map((v) => v * 65535);
  const [right, bottom] = toMap(viewport, viewport.width, viewport.height).map((v) => v * 65535);
  const found = [];
  for (let i = 0; i < cloud.n && found.length < most; i++) {
    if (cloud.x[i] >= left && cloud.x[i] <= right && cloud.y[i] >= top && cloud.y[i] <= bottom) found.push(i);
  }
  return found;
}

export function createTileCache(gen, arrived) {
  const loaded = new Map();

  function tile(z, x, y) {
    const address = `/api/v1/map/${gen}/tile/${z}/${x}/${y}.jpg`;
    let found = loaded.get(address);
    if (!found) {
      const image = new Image();
      const mine = { image, since: 0 };
      found = mine;
      image.onload = () => {
        mine.since = performance.now();
        arrived();
      };
      image.onerror = () =>
        setTimeout(() => {
          loaded.delete(address);
          arrived();
        }, 4000); // request it again
      image.src = address;
    }
    loaded.delete(address);
    loaded.set(address, found);
    while (loaded.size > MAX_TILES) loaded.delete(loaded.keys().next().value ?? "");
    return found;
  }

  /** The cells of points at a depth, and the number of tiles that hold them. */
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

  /** Draw the points in view (`still`: without fading); whether something is still fading in. */
  function draw(context, cloud, viewport, points, still) {
    let z = Math.min(Math.max(Math.round(Math.log2(mapWidth(viewport) / (CELLS * SIDE))), 0), MAX_DEPTH);
    let shown = cells(cloud, points, z);
    // If more tiles are needed than are cached, use a coarser depth.
    while (shown.tiles > MAX_TILES) shown = cells(cloud, points, --z);
    const size = mapWidth(viewport) / (2 ** z * CELLS);
    cache.size = size;
    let fading = false;
    for (const [cx, cy] of shown.places) {
      const { image, since } = tile(z, Math.floor(cx / CELLS), Math.floor(cy / CELLS));
      if (!since) continue;
      const age = (performance.now() - since) / 120;
      context.globalAlpha = still ? 1 : Math.min(age, 1);
      if (age < 1 && !still) fading = true;
      const [px, py] = toScreen(viewport, cx / (2 ** z * CELLS), cy / (2 ** z * CELLS));
      context.drawImage(
        image,
        (cx % CELLS) * SIDE,
        (cy % CELLS) * SIDE,
        SIDE,
        SIDE,
        px + 1,
        py + 1,
        size - 2,
        size - 2,
      );
    }
    context.globalAlpha = 1;
    return fading;
  }
  const cache = { draw, gen, size: 0 };
  return cache;
}
