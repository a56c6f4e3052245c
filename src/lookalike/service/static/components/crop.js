// Crop the query image: a frame with eight handles, moved by pointer or keys; results follow.

import { h, iconButton, row } from "../dom.js";
import { isTouch } from "../store.js";
import { pinch } from "./pinch.js";

const DELAY = 250; // ms after the last move
const MIN_PIXELS = 32; // shortest side of a crop, in image pixels
const EDGES = [
  ["nw", 0, 0],
  ["n", 0.5, 0],
  ["ne", 1, 0],
  ["e", 1, 0.5],
  ["se", 1, 1],
  ["s", 0.5, 1],
  ["sw", 0, 1],
  ["w", 0, 0.5],
];
const FRAME = 0.88; // size of the fixed frame on touch screens, as a fraction of the area

/** @param {string} text `x1,y1,x2,y2` @returns {number[]} */
export function parseBox(text) {
  const box = text.split(",").map(Number);
  return box.length === 4 && box.every((v) => v >= 0 && v <= 1) && box[0] < box[2] && box[1] < box[3]
    ? box
    : [0, 0, 1, 1];
}

/** @param {number[]} box */
export const formatBox = (box) =>
  box[0] <= 0 && box[1] <= 0 && box[2] >= 1 && box[3] >= 1
    ? ""
    : box.map((v) => String(Number(v.toFixed(3)))).join(",");

/** @param {number[]} box */
export const areaPercent = (box) => Math.round(100 * (box[2] - box[0]) * (box[3] - box[1]));

/**
 * With mouse and keys a frame moves over the image; on touch screens the image moves under a fixed frame.
 * @param {{src: string, alt: string, ratio: number, box: string,
 *          change: (box: string) => void, close: () => void}} options
 */
export function crop({ src, alt, ratio, box: text, change, close }) {
  let box = parseBox(text);
  let timer = 0;
  const image = h("img", { src, alt, draggable: "false" });
  const frame = h("div.crop-frame", {
    tabindex: 0,
    role: "group",
    "aria-label": "The part to search by. Arrow keys move it, Shift and arrow keys resize it, r resets it.",
  });
  const area = h("div.crop-area", { "--ar": ratio }, image, frame);
  const words = h("span", { role: "status", "aria-live": "polite" });
  const reset = h("button", { onclick: () => set([0, 0, 1, 1]) }, "Reset ", h("kbd", "r"));
  const done = iconButton("close", "Close the crop", () => close(), { class: "quiet icon" });
  const node = h("div", { class: isTouch() ? "crop fingers" : "crop" }, area, row(words, reset, done));

  const small = (next) =>
    (next[2] - next[0]) * (image.naturalWidth || 512) < MIN_PIXELS ||
    (next[3] - next[1]) * (image.naturalHeight || 512) < MIN_PIXELS;

  function draw() {
    const [wide, high] = [box[2] - box[0], box[3] - box[1]];
    const scale = 1 / Math.max(wide, high);
    const middle = (at, size) => `${100 * (0.5 - (at + size / 2) * scale * FRAME)}%`;
    const styles = {
      "--l": `${100 * box[0]}%`,
      "--t": `${100 * box[1]}%`,
      "--w": `${100 * wide}%`,
      "--h": `${100 * high}%`,
      "--px": middle(box[0], wide),
      "--py": middle(box[1], high),
      "--k": String(scale * FRAME),
    };
    for (const [name, value] of Object.entries(styles)) area.style.setProperty(name, value);
    words.textContent =
      image.complete && small(box)
        ? "Too small; at least 32 pixels are needed."
        : formatBox(box)
          ? `${areaPercent(box) || "under 1"} %`
          : isTouch()
            ? "Pinch and move the image"
            : "Whole image";
  }

  function set(next) {
    box = next.map((v) => Math.min(Math.max(v, 0), 1));
    draw();
    clearTimeout(timer);
    if (!small(box)) timer = setTimeout(() => change(formatBox(box)), DELAY);
  }

  if (isTouch()) attachTouch(area, frame, () => box, set);
  else attachMouse(area, frame, () => box, set);
  frame.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-0.01, 0], ArrowRight: [0.01, 0], ArrowUp: [0, -0.01], ArrowDown: [0, 0.01] }[event.key];
    if (event.key === "r") set([0, 0, 1, 1]);
    else if (event.key === "Escape") close();
    else if (step && event.shiftKey)
      set([box[0], box[1], Math.max(box[2] + step[0], box[0] + 0.02), Math.max(box[3] + step[1], box[1] + 0.02)]);
    else if (step) set(translate(box, step[0], step[1]));
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  image.addEventListener("load", draw);
  draw();
  return Object.assign(node, { enter: () => frame.focus({ preventScroll: true }), source: src });
}

/** Position of a pointer relative to an element, from 0 to 1. */
function relativePosition(event, element) {
  const r = element.getBoundingClientRect();
  return [(event.clientX - r.left) / r.width, (event.clientY - r.top) / r.height];
}

/** Drag a handle to resize, inside to move, outside to draw a new frame. */
function attachMouse(area, frame, get, set) {
  frame.append(
    ...EDGES.map(([name, x, y]) => h("span", { class: `handle ${name}`, "data-edge": name, "--hx": x, "--hy": y })),
  );
  let drag = null;
  area.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    event.preventDefault();
    area.setPointerCapture(event.pointerId);
    const [from, box] = [relativePosition(event, area), get()];
    const edge = event.target instanceof HTMLElement ? (event.target.dataset.edge ?? "") : "";
    const inside = from[0] > box[0] && from[0] < box[2] && from[1] > box[1] && from[1] < box[3];
    drag = { edge: edge || (inside && formatBox(box) ? "move" : "new"), from, box: [...box] };
    frame.focus({ preventScroll: true });
  });
  area.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const [x, y] = relativePosition(event, area).map((v) => Math.min(Math.max(v, 0), 1));
    const next = [...drag.box];
    if (drag.edge === "new") {
      const [fx, fy] = drag.from;
      if (Math.abs(x - fx) < 0.02 || Math.abs(y - fy) < 0.02) return;
      return set([Math.min(fx, x), Math.min(fy, y), Math.max(fx, x), Math.max(fy, y)]);
    }
    if (drag.edge === "move") return set(translate(drag.box, x - drag.from[0], y - drag.from[1]));
    if (drag.edge.includes("w")) next[0] = Math.min(x, next[2] - 0.02);
    if (drag.edge.includes("e")) next[2] = Math.max(x, next[0] + 0.02);
    if (drag.edge.includes("n")) next[1] = Math.min(y, next[3] - 0.02);
    if (drag.edge.includes("s")) next[3] = Math.max(y, next[1] + 0.02);
    set(next);
  });
  for (const end of ["pointerup", "pointercancel"])
    area.addEventListener(end, () => {
      drag = null;
    });
}

/** Pan and pinch the image under the fixed frame. */
function attachTouch(area, frame, get, set) {
  pinch(
    area,
    ({ before, after, factor }) => {
      const box = get();
      const side = Math.max(box[2] - box[0], box[3] - box[1]);
      const next = Math.min(Math.max(side / factor, 0.02), 1);
      const start = [0, 1].map((k) => {
        const corner = (box[k] + box[k + 2] - side) / 2;
        return Math.min(Math.max(corner + before[k] * side - after[k] * next, 0), 1 - next);
      });
      set([...start, start[0] + next, start[1] + next]);
    },
    (event) => relativePosition(event, frame),
  );
}

function translate(box, dx, dy) {
  const x = Math.min(Math.max(dx, -box[0]), 1 - box[2]);
  const y = Math.min(Math.max(dy, -box[1]), 1 - box[3]);
  return [box[0] + x, box[1] + y, box[2] + x, box[3] + y];
}
