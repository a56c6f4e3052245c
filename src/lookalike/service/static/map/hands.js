// Pointers and keys: drag pans, wheel and pinch zoom, Shift and drag draws round points.

import { toMap } from "./buffer.js";

/** @param {Record<string, Function>} act what the view does */
export function hands(stage, act) {
  const { node, eye } = stage;
  const down = new Map();
  let moved = 0;
  let link = null; // the name that is pressed
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
    line = event.shiftKey || act.lassoing() ? [toMap(eye, now.x, now.y)] : [];
    if (line.length) stage.marks.line = line;
  });
  node.addEventListener("pointermove", (event) => {
    const now = place(event);
    const before = down.get(event.pointerId);
    if (!before) {
      if (event.target.closest("a")) act.leave(); // no card over a name
      else if (event.pointerType !== "touch") act.hover(now.x, now.y);
      return;
    }
    moved += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
    down.set(event.pointerId, now);
    if (line.length) {
      line.push(toMap(eye, now.x, now.y));
      stage.redraw();
    } else if (down.size === 2) {
      const [a, b] = [...down.values()];
      const wide = Math.hypot(a.x - b.x, a.y - b.y);
      if (spread) stage.zoom(wide / spread, (a.x + b.x) / 2, (a.y + b.y) / 2);
      spread = wide;
    } else if (moved > 3) {
      if (moved > 6) node.setPointerCapture(event.pointerId);
      act.moving();
      stage.pan(now.x - before.x, now.y - before.y);
    }
  });
  const up = (event) => {
    if (!down.delete(event.pointerId)) return;
    const now = place(event);
    if (line.length > 8) act.lasso(line);
    else if (moved <= 6 && event.type === "pointerup") {
      if (!link) act.click(now.x, now.y);
      else if (!link.isConnected) link.click(); // written anew while it was pressed
    }
    if (line.length <= 8 && line.length) { stage.marks.line = []; stage.redraw(); }
    line = [];
  };
  node.addEventListener("pointerup", up);
  node.addEventListener("pointercancel", up);
  node.addEventListener("dragstart", (event) => event.preventDefault());
  node.addEventListener("pointerleave", () => act.leave());
  node.addEventListener("wheel", (event) => {
    event.preventDefault();
    const now = place(event);
    act.moving();
    stage.zoom(Math.exp(-event.deltaY / (event.ctrlKey ? 100 : 400)), now.x, now.y);
  }, { passive: false });
  /** Keys of the map; whether it was one. @param {KeyboardEvent} event */
  return (event) => {
    const step = event.shiftKey ? 200 : 60;
    const way = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] }[event.key];
    const factor = { "+": 1.4, "=": 1.4, "-": 1 / 1.4, "−": 1 / 1.4 }[event.key];
    if (way) stage.pan(...way);
    else if (factor) stage.zoom(factor);
    else if (event.key === "0") act.fit();
    else return false;
    act.moving();
    return true;
  };
}

/** A drawn line with few corners, as a filter. */
export function area(gen, line) {
  const every = Math.max(1, Math.ceil(line.length / 40));
  const corners = line.filter((_, k) => k % every === 0);
  const digits = (v) => Math.min(Math.max(Math.round(v * 4096), 0), 4095).toString(16).padStart(3, "0");
  return `area:${gen}.${corners.flatMap((corner) => corner.map(digits)).join("")}`;
}
