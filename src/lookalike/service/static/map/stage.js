// The canvas: paints when something changed, a part of the points while it moves, all of them at rest.

import { h } from "../dom.js";
import { calm } from "../store.js";
import { hold, span, toMap, toScreen } from "./buffer.js";
import * as cpu from "./paint-cpu.js";
import { inView, tiles } from "./tiles.js";

const BUDGET = 12; // ms a frame may take while moving
const FEW = 400; // points in view that become images

export function stage(first) {
  let cloud = first;
  const canvas = h("canvas.points", { "aria-hidden": "true" });
  const above = h("canvas.above", { "aria-hidden": "true" });
  const node = h("div.plane", { tabindex: 0, role: "application", "aria-label": "Map of all images" }, canvas, above);
  const eye = { x: 0.5, y: 0.5, zoom: 1, width: 1, height: 1 };
  let painter = cpu.painter(canvas);
  let shelf = tiles(cloud.gen, () => redraw());
  let drawn = cloud.n;
  let waiting = 0;
  let resting = 0;
  let settling = 0;
  let rested = () => {};
  const marks = { rings: [], line: [] };
  /** When frames of a moving map were painted, for whoever measures. @type {number[]} */
  const frames = [];
  node.frames = frames;

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function paint(moving) {
    const began = performance.now();
    if (moving) frames.push(began);
    if (frames.length > 600) frames.shift();
    const points = moving ? [] : inView(cloud, eye, FEW);
    const few = !moving && points.length < FEW && span(eye) > 1.5 * Math.min(eye.width, eye.height);
    const size = Math.min(Math.max(2 + Math.log2(eye.zoom) / 3, 2), 4) + (cloud.n < 3000 ? 2 : 0);
    painter.paint(cloud, eye, { count: moving ? Math.min(drawn, cloud.n) : cloud.n, ratio: moving ? 1 : devicePixelRatio, dim: css("--dim"), size });
    const took = performance.now() - began;
    if (moving) drawn = Math.round(Math.min(Math.max((drawn * BUDGET) / Math.max(took, 1), 5000), cloud.n));
    canvas.dataset.painter = painter.kind;
    shelf.size = 0;
    if (!node.dataset.first) requestAnimationFrame((now) => { node.dataset.first ??= String(now); }); // on the screen by then
    over(few ? points : []);
  }

  /** Images, rings and the lasso. */
  function over(points) {
    const ratio = devicePixelRatio;
    const [width, height] = [Math.round(eye.width * ratio), Math.round(eye.height * ratio)];
    if (above.width !== width || above.height !== height) { above.width = width; above.height = height; }
    const context = above.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, eye.width, eye.height);
    if (points.length && shelf.draw(context, cloud, eye, points, calm())) requestAnimationFrame(() => over(points));
    for (const { x, y, kind } of marks.rings) {
      const [px, py] = toScreen(eye, x, y);
      for (const [color, wide] of [[css("--bg"), 6], [css(kind === "query" ? "--danger" : "--accent"), 3]]) {
        context.beginPath();
        context.strokeStyle = String(color);
        context.lineWidth = Number(wide);
        context.arc(px, py, kind === "hit" ? 8 : 11, 0, 7);
        context.stroke();
      }
    }
    if (marks.line.length > 1) {
      context.beginPath();
      for (const [x, y] of marks.line) context.lineTo(...toScreen(eye, x, y));
      context.closePath();
      context.fillStyle = css("--veil");
      context.fill();
      context.strokeStyle = css("--accent");
      context.lineWidth = 2;
      context.stroke();
    }
  }

  /** Paint with the next frame; at rest 120 ms after the last move. */
  function redraw(moving = false) {
    if (!waiting) waiting = requestAnimationFrame(() => { waiting = 0; paint(moving || Boolean(resting)); });
    if (!moving) return;
    clearTimeout(resting);
    resting = setTimeout(() => { resting = 0; paint(false); rested(); }, 120);
  }

  const watch = new ResizeObserver(() => {
    const box = node.getBoundingClientRect();
    if (box.width < 2 || box.height < 2) return;
    [eye.width, eye.height] = [box.width, box.height];
    paint(false);
    clearTimeout(settling);
    settling = setTimeout(() => rested(), 50); // the points first
  });
  watch.observe(node);

  function place(x, y, zoom) {
    Object.assign(eye, { x, y, zoom });
    hold(eye);
  }

  return {
    node, eye, marks, redraw, place,
    get cloud() { return cloud; },
    /** Called whenever the image stands still. @param {() => void} act */
    whenRested(act) {
      rested = act;
      clearTimeout(settling);
      settling = setTimeout(act);
    },
    /** How large the small images are, 0 while there are points. */
    get side() { return shelf.size; },
    look(x, y, zoom) {
      place(x, y, zoom);
      redraw(true);
    },
    zoom(factor, px = eye.width / 2, py = eye.height / 2) {
      const [x, y] = toMap(eye, px, py);
      eye.zoom *= factor;
      hold(eye);
      const [nx, ny] = toMap(eye, px, py);
      this.look(eye.x + x - nx, eye.y + y - ny, eye.zoom);
    },
    pan(dx, dy) {
      this.look(eye.x - dx / span(eye), eye.y - dy / span(eye), eye.zoom);
    },
    /** Points go to their new places; `was` says which point of the old cloud each was. */
    async glide(next, was) {
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
    /** Another drawing of the same images. */
    show(next) {
      if (next.gen !== shelf.gen) shelf = tiles(next.gen, () => redraw());
      cloud = next;
      drawn = Math.min(Math.max(drawn, 5000), next.n);
      redraw();
    },
    /** Round points where the graphics card is quick at it. */
    async check_format() {
      const gl = await import("./paint-gl.js");
      const trial = h("canvas.points", { "aria-hidden": "true" });
      const found = gl.painter(trial, cloud);
      if (!found || !(await found.quick(eye)) || !node.isConnected) return;
      trial.addEventListener("webglcontextlost", () => { painter = cpu.painter(canvas); trial.replaceWith(canvas); redraw(); });
      canvas.replaceWith(trial);
      painter = { kind: "gl", paint: (c, e, how) => { trial.dataset.painter = "gl"; return found.paint(c, e, { ...how, count: c.n }); } };
      redraw();
    },
    close: () => { watch.disconnect(); clearTimeout(resting); clearTimeout(settling); cancelAnimationFrame(waiting); },
  };
}
