// The answer to the pointer over a line chart. The chart itself is SVG that needs no script.

/** A number as the tables write it. @param {number} value */
export function words(value) {
  const size = Math.abs(value);
  const digits = Number.isInteger(value) ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 3;
  return value.toLocaleString("en-GB", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** A line of text as an element; never as markup. */
export function line(text, tag = "p") {
  const element = document.createElement(tag);
  element.textContent = text;
  return element;
}

/** Keep a card beside a point inside its box. */
export function place(card, box, x, y) {
  const left = x + 14 + card.offsetWidth > box.clientWidth ? x - 14 - card.offsetWidth : x + 14;
  const top = Math.min(Math.max(0, y - card.offsetHeight / 2), Math.max(0, box.clientHeight - card.offsetHeight));
  card.style.setProperty("transform", `translate(${Math.max(0, left)}px, ${top}px)`);
}

/** A card that belongs to `box`, hidden until needed. */
export function card(box) {
  const element = document.createElement("div");
  element.className = "tip-card";
  element.hidden = true;
  box.append(element);
  return element;
}

/** Show the values of all curves at the step nearest to the pointer. @param {HTMLElement} box */
export function crosshair(box) {
  const plot = box.querySelector("svg.plot");
  if (!plot?.dataset.x) return;
  const [low, high] = plot.dataset.x.split(" ").map(Number);
  const curves = [...plot.querySelectorAll("path[data-points]")].map((path) => {
    const flat = path.dataset.points.split(" ").map(Number);
    return { name: path.dataset.name, x: flat.filter((_, i) => i % 2 === 0), y: flat.filter((_, i) => i % 2 === 1) };
  });
  if (!curves.length) return;
  const unit = box.querySelector(".axis-name.x")?.textContent ?? "";
  const tip = card(box);
  const rule = document.createElement("div");
  rule.className = "cross";
  rule.hidden = true;
  box.append(rule);
  const hide = () => { tip.hidden = rule.hidden = true; };
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("pointermove", (event) => {
    const area = plot.getBoundingClientRect();
    const outer = box.getBoundingClientRect();
    const wanted = low + ((event.clientX - area.left) / area.width) * (high - low);
    const nearest = (xs) => xs.reduce((best, x, i) => (Math.abs(x - wanted) < Math.abs(xs[best] - wanted) ? i : best), 0);
    const step = curves[0].x[nearest(curves[0].x)];
    const rows = curves.map((curve) => `${curve.name} ${words(curve.y[nearest(curve.x)])}`);
    tip.replaceChildren(line(`${unit} ${words(step)}`), ...rows.map((row) => line(row)));
    tip.hidden = rule.hidden = false;
    const x = area.left - outer.left + ((step - low) / (high - low)) * area.width;
    rule.style.setProperty("left", `${x}px`);
    rule.style.setProperty("top", `${area.top - outer.top}px`);
    rule.style.setProperty("bottom", `${outer.bottom - area.bottom}px`);
    place(tip, box, x, event.clientY - outer.top);
  });
}
