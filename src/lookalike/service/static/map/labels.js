// Labels of dense places: the value that most points there have, and its fraction.

import { NONE, toMap, toScreen } from "./points.js";

const SIDE = 128;
const MAX_PLACES = 14;

/** Find dense places in view. @returns {Record<string, number>[]} `edge` is the top of its points in pixels */
export function findPlaces(cloud, viewport) {
  const [left, top] = toMap(viewport, 0, 0);
  const [right, bottom] = toMap(viewport, viewport.width, viewport.height);
  const [sx, sy] = [SIDE / (right - left) / 65535, SIDE / (bottom - top) / 65535];
  const grid = new Float32Array(SIDE * SIDE);
  const cells = new Int32Array(cloud.n).fill(-1);
  let seen = 0;
  const [ox, oy] = [left * 65535 * sx, top * 65535 * sy];
  for (let i = 0; i < cloud.n; i++) {
    const cx = Math.floor(cloud.x[i] * sx - ox);
    const cy = Math.floor(cloud.y[i] * sy - oy);
    if (cx < 0 || cy < 0 || cx >= SIDE || cy >= SIDE) continue;
    cells[i] = cy * SIDE + cx;
    grid[cells[i]]++;
    seen++;
  }
  const smooth = blur(blur(grid));
  const peaks = [];
  const around = [-2, -1, 0, 1, 2].flatMap((dy) => [-2, -1, 0, 1, 2].map((dx) => dy * SIDE + dx));
  for (let at = SIDE; at < SIDE * (SIDE - 1); at++) {
    const height = smooth[at];
    if (height > 0 && !around.some((by) => smooth[at + by] > height || (smooth[at + by] === height && by < 0)))
      peaks.push(at);
  }
  peaks.sort((a, b) => smooth[b] - smooth[a]);
  const reach = 9;
  const out = [];
  for (const cell of peaks) {
    const [cx, cy] = [cell % SIDE, Math.floor(cell / SIDE)];
    const [px, py] = [((cx + 0.5) * viewport.width) / SIDE, ((cy + 0.5) * viewport.height) / SIDE];
    if (px < 70 || py < 24 || px > viewport.width - 70 || py > viewport.height - 24) continue;
    if (out.some((o) => Math.abs(o.px - px) < 150 && Math.abs(o.py - py) < 40)) continue;
    out.push({
      cx,
      cy,
      px,
      py,
      x: left + ((cx + 0.5) / SIDE) * (right - left),
      y: top + ((cy + 0.5) / SIDE) * (bottom - top),
    });
    if (out.length === MAX_PLACES) break;
  }
  // Count the points around each place in one pass.
  const near = new Int8Array(SIDE * SIDE).fill(-1);
  out.forEach(({ cx, cy }, k) => {
    for (let dy = -reach; dy <= reach; dy++) {
      for (let dx = -reach; dx <= reach; dx++) {
        const [ax, ay] = [cx + dx, cy + dy];
        if (dx * dx + dy * dy > reach * reach || ax < 0 || ay < 0 || ax >= SIDE || ay >= SIDE) continue;
        if (near[ay * SIDE + ax] < 0) near[ay * SIDE + ax] = k;
      }
    }
  });
  const counts = out.map(() => new Map());
  const totals = out.map(() => 0);
  const middles = out.map(() => ({ i: -1, distance: Infinity }));
  const tops = out.map(() => 65535);
  for (let i = 0; i < cloud.n; i++) {
    const k = cells[i] < 0 ? -1 : near[cells[i]];
    if (k < 0) continue;
    totals[k]++;
    tops[k] = Math.min(tops[k], cloud.y[i]);
    if (cloud.codes[i] !== NONE) counts[k].set(cloud.codes[i], (counts[k].get(cloud.codes[i]) ?? 0) + 1);
    const distance = (cloud.x[i] / 65535 - out[k].x) ** 2 + (cloud.y[i] / 65535 - out[k].y) ** 2;
    if (distance < middles[k].distance) middles[k] = { i, distance };
  }
  return out
    .map((place, k) => {
      const best = [...counts[k]].sort((a, b) => b[1] - a[1])[0] ?? [NONE, 0];
      return {
        ...place,
        code: 2 * best[1] > totals[k] ? best[0] : NONE, // a minority does not name a place
        fraction: totals[k] ? best[1] / totals[k] : 0,
        count: totals[k],
        middle: middles[k].i,
        edge: toScreen(viewport, 0, tops[k] / 65535)[1],
      };
    })
    .filter((place) => place.count >= Math.max(3, seen / 2000));
}

/** A separable 3 × 3 binomial blur. */
function blur(grid) {
  const out = new Float32Array(grid.length);
  const half = new Float32Array(grid.length);
  for (let at = 1; at < grid.length - 1; at++) half[at] = grid[at - 1] + 2 * grid[at] + grid[at + 1];
  for (let at = SIDE; at < grid.length - SIDE; at++) out[at] = half[at - SIDE] + 2 * half[at] + half[at + SIDE];
  return out;
}
