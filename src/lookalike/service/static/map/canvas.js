// The map's canvas: repaints on change; some of the points while moving, all of them at rest.

import { h } from "../dom.js";
import { prefersReducedMotion } from "../store.js";
import * as cpu from "./paint_cpu.js";
import { clampViewport, mapWidth, toMap, toScreen } from "./points.js";
import { createTileCache, inView } from "./tiles.js";

const FRAME_MS = 12; // time budget of a frame while moving
const MAX_THUMBNAILS = 400; // points in view that are shown as images

export function createCanvas(first) {
  let cloud = first;
  const canvas = h("canvas.points", { "aria-hidden": "true" });
  const overlay = h("canvas.above", { "aria-hidden": "true" });
  const node = h(
    "div.map-canvas",
    { tabindex: 0, role: "application", "aria-label": "Map of all images" },
    canvas,
    overlay,
  );
  const viewport = { x: 0.5, y: 0.5, zoom: 1, width: 1, height: 1 };
  let painter = cpu.createPainter(canvas);
  let tileCache = createTileCache(cloud.gen, () => redraw());
  let pointBudget = cloud.n;
  let frameRequest = 0;
  let idleTimer = 0;
  let settleTimer = 0;
  let idle = () => {};
  const marks = { rings: [], line: [] };
  /** Times of the frames painted while moving, for benchmarks. @type {number[]} */
  const frames = [];
  node.frames = frames;

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function paint(moving) {
    const began = performance.now();
    if (moving) frames.push(began);
    if (frames.length > 600) frames.shift();
    const points = moving ? [] : inView(cloud, viewport, MAX_THUMBNAILS);
    const few =
      !moving && points.length < MAX_THUMBNAILS && mapWidth(viewport) > 1.5 * Math.min(viewport.width, viewport.height);
    const size = Math.min(Math.max(2 + Math.log2(viewport.zoom) / 3, 2), 4) + (cloud.n < 3000 ? 2 : 0);
    painter.paint(cloud, viewport, {
      count: moving ? Math.min(pointBudget, cloud.n) : cloud.n,
      ratio: moving ? 1 : devicePixelRatio,
      dim: css("--dim"),
      size,
    });
    const took = performance.now() - began;
    if (moving)
      pointBudget = Math.round(Math.min(Math.max((pointBudget * FRAME_MS) / Math.max(took, 1), 5000), cloud.n));
    canvas.dataset.painter = painter.kind;
    tileCache.size = 0;
    if (!node.dataset.first)
      requestAnimationFrame((now) => {
        node.dataset.first ??= String(now);
      }); // the first frame is on the screen by then
    drawOverlay(few ? points : []);
  }

  /** Draw images, rings and the lasso. */
  function drawOverlay(points) {
    const ratio = devicePixelRatio;
    const [width, height] = [Math.round(viewport.width * ratio), Math.round(viewport.height * ratio)];
    if (overlay.width !== width || overlay.height !== height) {
      overlay.width = width;
      overlay.height = height;
    }
    const context = overlay.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, viewport.width, viewport.height);
    if (points.length && tileCache.draw(context, cloud, viewport, points, prefersReducedMotion()))
      requestAnimationFrame(() => drawOverlay(points));
    for (const { x, y, kind } of marks.rings) {
      const [px, py] = toScreen(viewport, x, y);
      for (const [color, wide] of [
        [css("--bg"), 6],
        [css(kind === "query" ? "--danger" : "--accent"), 3],
      ]) {
        context.beginPath();
        context.strokeStyle = String(color);
        context.lineWidth = Number(wide);
        context.arc(px, py, kind === "hit" ? 8 : 11, 0, 7);
        context.stroke();
      }
    }
    if (marks.line.length > 1) {
      context.beginPath();
      for (const [x, y] of marks.line) context.lineTo(...toScreen(viewport, x, y));
      context.closePath();
      context.fillStyle = css("--veil");
      context.fill();
      context.strokeStyle = css("--accent");
      context.lineWidth = 2;
      context.stroke();
    }
  }

  /** Paint in the next frame; the map is idle 120 ms after the last move. */
  function redraw(moving = false) {
    if (!frameRequest)
      frameRequest = requestAnimationFrame(() => {
        frameRequest = 0;
        paint(moving || Boolean(idleTimer));
      });
    if (!moving) return;
    clearTimeout(idleTimer);
    idleTimer = setTimeout(() => {
      idleTimer = 0;
      paint(false);
      idle();
    }, 120);
  }

  const watch = new ResizeObserver(() => {
    const box = node.getBoundingClientRect();
    if (box.width < 2 || box.height < 2) return;
    [viewport.width, viewport.height] = [box.width, box.height];
    paint(false);
    clearTimeout(settleTimer);
    settleTimer = setTimeout(() => idle(), 50); // paint the points first
  });
  watch.observe(node);

  function place(x, y, zoom) {
    Object.assign(viewport, { x, y, zoom });
    clampViewport(viewport);
  }

  return {
    node,
    viewport,
    marks,
    redraw,
    place,
    get cloud() {
      return cloud;
    },
    /** Set the callback for when the map comes to rest. @param {() => void} act */
    onIdle(act) {
      idle = act;
      clearTimeout(settleTimer);
      settleTimer = setTimeout(act);
    },
    /** Size of the thumbnails in pixels; 0 while points are shown. */
    get side() {
      return tileCache.size;
    },
    lookAt(x, y, zoom) {
      place(x, y, zoom);
      redraw(true);
    },
    zoom(factor, px = viewport.width / 2, py = viewport.height / 2) {
      const [x, y] = toMap(viewport, px, py);
      viewport.zoom *= factor;
      clampViewport(viewport);
      const [nx, ny] = toMap(viewport, px, py);
      this.lookAt(viewport.x + x - nx, viewport.y + y - ny, viewport.zoom);
    },
    pan(dx, dy) {
      this.lookAt(viewport.x - dx / mapWidth(viewport), viewport.y - dy / mapWidth(viewport), viewport.zoom);
    },
    /** Animate points to a new layout; `was` maps each point to its index in the old one. */
    async animateTo(next, was) {
      const [old, began] = [cloud, performance.now()];
      const between = (from, to, share) =>
        to.map((v, i) => (was[i] < 0 ? v : from[was[i]] + (v - from[was[i]]) * share));
      for (let t = 0; t < 1 && node.isConnected; t = (performance.now() - began) / 600) {
        const ease = 1 - (1 - t) ** 3;
        cloud = { ...next, x: between(old.x, next.x, ease), y: between(old.y, next.y, ease) };
        redraw(true);
        await new Promise(requestAnimationFrame);
      }
      this.show(next);
    },
    /** Show another layout or coloring. */
    show(next) {
      if (next.gen !== tileCache.gen) tileCache = createTileCache(next.gen, () => redraw());
      cloud = next;
      pointBudget = Math.min(Math.max(pointBudget, 5000), next.n);
      redraw();
    },
    /** Switch to WebGL if it is fast on this machine. */
    async tryWebgl() {
      const gl = await import("./paint_webgl.js");
      const trial = h("canvas.points", { "aria-hidden": "true" });
      const webgl = gl.createPainter(trial, cloud);
      if (!webgl || !(await webgl.quick(viewport)) || !node.isConnected) return;
      trial.addEventListener("webglcontextlost", () => {
        painter = cpu.createPainter(canvas);
        trial.replaceWith(canvas);
        redraw();
      });
      canvas.replaceWith(trial);
      painter = {
        kind: "gl",
        paint: (c, e, how) => {
          trial.dataset.painter = "gl";
          return webgl.paint(c, e, { ...how, count: c.n });
        },
      };
      redraw();
    },
    close: () => {
      watch.disconnect();
      clearTimeout(idleTimer);
      clearTimeout(settleTimer);
      cancelAnimationFrame(frameRequest);
    },
  };
}
