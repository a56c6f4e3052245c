// Thumbnails in place of points when few are in view: tiles of 8 × 8 cells, least recently used dropped.

import { apiUrl } from "../api.js";
import { mapWidth, toMap, toScreen } from "./points.js";

const CELLS = 8;
const SIDE = 64;
const MAX_TILES = 12;
const MAX_DEPTH = 14;

/** Indices of points in view, at most `most`. */
export function inView(cloud, viewport, most) {
  const [left, top] = toMap(viewport, 0, 0).map((v) => v * 65535);
  const [right, bottom] = toMap(viewport, viewport.width, viewport.height).map((v) => v * 65535);
  const points = [];
  for (let i = 0; i < cloud.n && points.length < most; i++) {
    if (cloud.x[i] >= left && cloud.x[i] <= right && cloud.y[i] >= top && cloud.y[i] <= bottom) points.push(i);
  }
  return points;
}

export function createTileCache(gen, arrived) {
  const loaded = new Map();

  function loadTile(z, x, y) {
    const address = apiUrl(`map/${gen}/tile/${z}/${x}/${y}.jpg`);
    let tile = loaded.get(address);
    if (!tile) {
      const image = new Image();
      const mine = { image, since: 0 };
      tile = mine;
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
    loaded.set(address, tile);
    while (loaded.size > MAX_TILES) loaded.delete(loaded.keys().next().value ?? "");
    return tile;
  }

  /** The cells of points at a depth, and the number of tiles that hold them. */
  function cells(cloud, points, z) {
    const most = 2 ** z * CELLS;
    const places = new Map();
    for (const i of points) {
      const [cx, cy] = [cloud.x[i], cloud.y[i]].map((v) => Math.min(Math.floor((v / 65535) * most), most - 1));
      places.set(cy * most + cx, [cx, cy]);
    }
    const tiles = new Set(
      [...places.values()].map(([cx, cy]) => `${Math.floor(cx / CELLS)} ${Math.floor(cy / CELLS)}`),
    );
    return { places: [...places.values()], tiles: tiles.size };
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
      const { image, since } = loadTile(z, Math.floor(cx / CELLS), Math.floor(cy / CELLS));
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
