// Input of the map: drag to pan, wheel and pinch to zoom, Shift-drag to draw a lasso.

import { toMap } from "./points.js";

/** @param {Record<string, Function>} act callbacks of the controls */
export function attachInput(canvas, act) {
  const { node, viewport } = canvas;
  const down = new Map();
  let moved = 0;
  let link = null; // the label under the pointer
  let spread = 0;
  let line = [];
  const place = (event) => {
    const box = node.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };

  node.addEventListener("pointerdown", (event) => {
    if (event.button || event.target.closest("button")) return;
    link = event.target.closest("a");
    if (!link) node.setPointerCapture(event.pointerId);
    const now = place(event);
    down.set(event.pointerId, now);
    moved = spread = 0;
    line = event.shiftKey || act.lassoing() ? [toMap(viewport, now.x, now.y)] : [];
    if (line.length) canvas.marks.line = line;
  });
  node.addEventListener("pointermove", (event) => {
    const now = place(event);
    const before = down.get(event.pointerId);
    if (!before) {
      if (event.target.closest("a"))
        act.leave(); // no card while over a label
      else if (event.pointerType !== "touch") act.hover(now.x, now.y);
      return;
    }
    moved += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
    down.set(event.pointerId, now);
    if (line.length) {
      line.push(toMap(viewport, now.x, now.y));
      canvas.redraw();
    } else if (down.size === 2) {
      const [a, b] = [...down.values()];
      const wide = Math.hypot(a.x - b.x, a.y - b.y);
      if (spread) canvas.zoom(wide / spread, (a.x + b.x) / 2, (a.y + b.y) / 2);
      spread = wide;
    } else if (moved > 3) {
      if (moved > 6) node.setPointerCapture(event.pointerId);
      act.moving();
      canvas.pan(now.x - before.x, now.y - before.y);
    }
  });
  const up = (event) => {
    if (!down.delete(event.pointerId)) return;
    const now = place(event);
    if (line.length > 8) act.lasso(line);
    else if (moved <= 6 && event.type === "pointerup") {
      if (!link) act.click(now.x, now.y);
      else if (!link.isConnected) link.click(); // redrawn while it was pressed
    }
    if (line.length <= 8 && line.length) {
      canvas.marks.line = [];
      canvas.redraw();
    }
    line = [];
  };
  node.addEventListener("pointerup", up);
  node.addEventListener("pointercancel", up);
  node.addEventListener("dragstart", (event) => event.preventDefault());
  node.addEventListener("pointerleave", () => act.leave());
  node.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const now = place(event);
      act.moving();
      canvas.zoom(Math.exp(-event.deltaY / (event.ctrlKey ? 100 : 400)), now.x, now.y);
    },
    { passive: false },
  );
  /** Handle a key; whether it was one of the map's. @param {KeyboardEvent} event */
  return (event) => {
    const step = event.shiftKey ? 200 : 60;
    const way = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] }[event.key];
    const factor = { "+": 1.4, "=": 1.4, "-": 1 / 1.4, "−": 1 / 1.4 }[event.key];
    if (way) canvas.pan(...way);
    else if (factor) canvas.zoom(factor);
    else if (event.key === "0") act.fit();
    else return false;
    act.moving();
    return true;
  };
}

/** The filter for a lasso, simplified to few corners. */
export function areaFilter(gen, line) {
  const every = Math.max(1, Math.ceil(line.length / 40));
  const corners = line.filter((_, k) => k % every === 0);
  const digits = (v) =>
    Math.min(Math.max(Math.round(v * 4096), 0), 4095)
      .toString(16)
      .padStart(3, "0");
  return `area:${gen}.${corners.flatMap((corner) => corner.map(digits)).join("")}`;
}
