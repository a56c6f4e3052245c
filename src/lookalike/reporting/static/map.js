// The map's panels: the same images in both, so that pointing at one in the left shows it in the right.
import { makeTooltip, placeTooltip, textElement } from "./chart.js";
import { nearest, paint, pixel, unpack } from "./paint.js";

const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** @param {HTMLElement} root holds the panels; its data lies in the JSON block named by `data-map` */
export function map(root) {
  const data = JSON.parse(document.getElementById(root.dataset.map).textContent);
  const codes = unpack(data.codes);
  const palette = data.palette.map(pixel);
  const gray = palette.length - 1;
  let chosen = -1;
  const tip = makeTooltip(root);

  const panels = [...root.querySelectorAll(".field")].map((field, i) => {
    const still = field.querySelector("img");
    const canvas = document.createElement("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", still.alt);
    const ring = svg("circle", { r: 8, class: "halo" });
    const over = svg("svg", { "aria-hidden": "true" }, ring);
    over.style.setProperty("display", "none");
    still.classList.add("under");
    still.setAttribute("aria-hidden", "true");
    field.append(canvas, over);
    return { field, canvas, context: canvas.getContext("2d"), places: unpack(data.panels[i]), ring, over };
  });

  function draw() {
    const dim = pixel(getComputedStyle(root).getPropertyValue("--line").trim());
    const colors = Uint32Array.from(codes, (code) => {
      if (chosen < 0) return palette[data.colors[code]];
      return code === chosen ? palette[data.colors[code]] : dim;
    });
    for (const panel of panels) {
      const dense = Math.min(2, devicePixelRatio || 1);
      const wide = Math.round(panel.field.clientWidth * dense);
      if (!wide) continue;
      panel.canvas.width = wide;
      panel.canvas.height = Math.round(panel.field.clientHeight * dense);
      const size = Math.max(2, Math.round((codes.length > 4000 ? 3 : 5) * (wide / 640)));
      paint(panel.context, panel.places, colors, size, chosen < 0 ? palette[gray] : dim, chosen < 0 ? 1 : 1.5);
    }
  }

  function showImage(index, event) {
    for (const panel of panels) {
      panel.over.style.setProperty("display", index < 0 ? "none" : "block");
      if (index < 0) continue;
      panel.ring.setAttribute("cx", `${panel.places[2 * index] / 655.35}%`);
      panel.ring.setAttribute("cy", `${panel.places[2 * index + 1] / 655.35}%`);
    }
    tip.hidden = index < 0;
    if (index < 0) return;
    const image = data.images[index];
    const parts = [textElement(data.names[codes[index]], "bdi")];
    if (image) {
      const [key, width, height, alt] = image;
      const use = svg("use", { href: `#${key}` });
      const size = { viewBox: `0 0 ${width} ${height}`, width, height };
      parts.unshift(svg("svg", { ...size, role: "img", "aria-label": alt }, use));
    }
    tip.replaceChildren(...parts);
    const box = root.getBoundingClientRect();
    placeTooltip(tip, root, event.clientX - box.left, event.clientY - box.top);
  }

  for (const panel of panels) {
    const find = (event) => {
      const area = panel.canvas.getBoundingClientRect();
      const unit = 65535 / area.width,
        up = 65535 / area.height;
      const x = (event.clientX - area.left) * unit,
        y = (event.clientY - area.top) * up;
      return nearest(panel.places, x, y, 14 * unit, unit / up);
    };
    panel.canvas.addEventListener("pointermove", (event) => showImage(find(event), event));
    panel.canvas.addEventListener("pointerleave", () => showImage(-1));
    panel.canvas.addEventListener("click", (event) => {
      const index = find(event);
      choose(index < 0 || codes[index] === chosen ? -1 : codes[index]);
    });
  }

  const legend = /** @type {HTMLElement} */ (root.nextElementSibling);
  const entries = /** @type {HTMLCollectionOf<HTMLElement>} */ (legend.children);
  const select = document.createElement("select");
  function choose(code) {
    chosen = code;
    select.value = String(code);
    for (const item of entries) item.classList.toggle("on", item.dataset.code === String(code));
    draw();
  }
  const present = [...new Set(codes)].sort((a, b) => a - b);
  for (const code of [-1, ...present]) {
    select.append(new Option(code < 0 ? "all" : data.names[code].slice(0, 80), String(code)));
  }
  select.addEventListener("change", () => choose(Number(select.value)));
  const label = textElement("Show ", "label");
  label.append(select);
  const bar = document.createElement("div");
  bar.className = "map-bar";
  const purpose = panels.length > 1 ? "find it in both maps" : "see it";
  const hint = textElement(`Point at an image to ${purpose}; click to highlight its class.`, "span");
  hint.className = "muted";
  bar.append(label, hint);
  root.before(bar);
  legend.dataset.live = "";
  legend.addEventListener("click", (event) => {
    /** @type {HTMLElement | null} */
    const item = /** @type {Element} */ (event.target).closest("li[data-code]");
    if (item) choose(Number(item.dataset.code) === chosen ? -1 : Number(item.dataset.code));
  });

  new ResizeObserver(draw).observe(root);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}
