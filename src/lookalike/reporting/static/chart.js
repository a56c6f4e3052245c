// Values under the pointer of a line chart. The chart itself is SVG that needs no script.

/** A number as the tables write it. @param {number} value */
export function formatNumber(value) {
  const size = Math.abs(value);
  const digits = Number.isInteger(value) ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 3;
  return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** A line of text as an element; never as markup. */
export function textElement(text, tag = "p") {
  const element = document.createElement(tag);
  element.textContent = text;
  return element;
}

/** Place a tooltip beside a point, inside its box. */
export function placeTooltip(tip, box, x, y) {
  const left = x + 14 + tip.offsetWidth > box.clientWidth ? x - 14 - tip.offsetWidth : x + 14;
  const top = Math.min(Math.max(0, y - tip.offsetHeight / 2), Math.max(0, box.clientHeight - tip.offsetHeight));
  tip.style.setProperty("transform", `translate(${Math.max(0, left)}px, ${top}px)`);
}

/** Make a tooltip that belongs to `box`, hidden at first. */
export function makeTooltip(box) {
  const element = document.createElement("div");
  element.className = "tip-card";
  element.hidden = true;
  box.append(element);
  return element;
}

/** Show the values of all curves at the step nearest to the pointer. @param {HTMLElement} box */
export function crosshair(box) {
  /** @type {SVGElement | null} */
  const plot = box.querySelector("svg.plot");
  if (!plot?.dataset.x) return;
  const [low, high] = plot.dataset.x.split(" ").map(Number);
  /** @type {NodeListOf<SVGPathElement>} */
  const paths = plot.querySelectorAll("path[data-points]");
  const curves = [...paths].map((path) => {
    const flat = path.dataset.points.split(" ").map(Number);
    return { name: path.dataset.name, x: flat.filter((_, i) => i % 2 === 0), y: flat.filter((_, i) => i % 2 === 1) };
  });
  if (!curves.length) return;
  const unit = box.querySelector(".axis-name.x")?.textContent ?? "";
  const tip = makeTooltip(box);
  const rule = document.createElement("div");
  rule.className = "cross";
  rule.hidden = true;
  box.append(rule);
  const hide = () => {
    tip.hidden = rule.hidden = true;
  };
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("pointermove", (event) => {
    const area = plot.getBoundingClientRect();
    const outer = box.getBoundingClientRect();
    const pointed = low + ((event.clientX - area.left) / area.width) * (high - low);
    const distance = (x) => Math.abs(x - pointed);
    const nearest = (xs) => xs.reduce((best, x, i) => (distance(x) < distance(xs[best]) ? i : best), 0);
    const step = curves[0].x[nearest(curves[0].x)];
    const rows = curves.map((curve) => `${curve.name} ${formatNumber(curve.y[nearest(curve.x)])}`);
    tip.replaceChildren(textElement(`${unit} ${formatNumber(step)}`), ...rows.map((row) => textElement(row)));
    tip.hidden = rule.hidden = false;
    const x = area.left - outer.left + ((step - low) / (high - low)) * area.width;
    rule.style.setProperty("left", `${x}px`);
    rule.style.setProperty("top", `${area.top - outer.top}px`);
    rule.style.setProperty("bottom", `${outer.bottom - area.bottom}px`);
    placeTooltip(tip, box, x, event.clientY - outer.top);
  });
}
