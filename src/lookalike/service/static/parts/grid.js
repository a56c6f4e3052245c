// Justified rows of whole pictures, and the keys that move in them.

import { thumb } from "../api.js";
import { h, icon } from "../dom.js";
import { caption, title } from "./score.js";

/**
 * @param {any} item
 * @param {{href: string, tools?: any[], eager?: boolean, plain?: boolean, rough?: boolean}} options
 */
export function cell(item, { href, tools = [], eager = false, plain = false, rough = false }) {
  const ratio = Math.min(Math.max(item.ratio || 1, 0.3), 4);
  const image = h("img", {
    src: thumb(item.thumb, 256),
    srcset: `${thumb(item.thumb, 256)} 256w, ${thumb(item.thumb, 512)} 512w`,
    sizes: `${Math.round(240 * Math.max(ratio, 1))}px`,
    alt: title(item),
    width: Math.round(256 * Math.min(ratio, 1)),
    height: Math.round(256 / Math.max(ratio, 1)),
    loading: eager ? "eager" : "lazy",
    fetchpriority: eager ? "high" : null,
    decoding: "async",
  });
  const shot = h("a", { class: "shot", href, "data-link": true, "data-id": item.id, tabindex: -1 }, image);
  if (item.copies?.length) shot.append(h("span", { class: "copies" }, `+${item.copies.length}`));
  return h(
    "li",
    { class: `cell ${item.group ?? ""}${rough ? " rough" : ""}`, "--ar": ratio, "--mean": item.colour },
    shot,
    tools.length ? h("div", { class: "tools" }, tools) : null,
    plain ? null : caption(item),
  );
}

/** @param {string} symbol @param {string} name @param {() => void} act */
export function tool(symbol, name, act) {
  return h("button", { type: "button", tabindex: -1, title: name, "aria-label": name, onclick: act }, icon(symbol));
}

/** @param {any[]} cells @param {{weak?: boolean, label: string}} options */
export function grid(cells, { weak = false, label }) {
  return h("ul", { class: weak ? "grid weak" : "grid", "aria-label": label }, cells);
}

/** One tab stop for all pictures on the screen; arrows move between them. @param {Element} root */
export function roving(root) {
  const links = () => [...root.querySelectorAll("a.shot")].filter((a) => a instanceof HTMLElement);
  const first = links()[0];
  if (first) first.setAttribute("tabindex", "0");
  root.addEventListener("focusin", (event) => {
    if (!(event.target instanceof Element) || !event.target.matches("a.shot")) return;
    for (const link of links()) link.setAttribute("tabindex", link === event.target ? "0" : "-1");
  });
  root.addEventListener("keydown", (event) => {
    const here = event.target;
    if (!(event instanceof KeyboardEvent) || !(here instanceof HTMLElement) || !here.matches("a.shot")) return;
    const next = neighbour(links(), here, event.key);
    if (next) {
      event.preventDefault();
      next.focus();
      next.scrollIntoView({ block: "nearest" });
    }
  });
}

/** @param {any[]} links @param {HTMLElement} here @param {string} key */
function neighbour(links, here, key) {
  const place = links.indexOf(here);
  if (key === "ArrowRight") return links[place + 1];
  if (key === "ArrowLeft") return links[place - 1];
  if (key === "Home") return links[0];
  if (key === "End") return links[links.length - 1];
  if (key !== "ArrowDown" && key !== "ArrowUp") return null;
  const from = here.getBoundingClientRect();
  const middle = from.left + from.width / 2;
  const down = key === "ArrowDown";
  const beyond = links
    .map((link) => ({ link, box: link.getBoundingClientRect() }))
    .filter(({ box }) => (down ? box.top >= from.bottom - 1 : box.bottom <= from.top + 1));
  if (!beyond.length) return null;
  const edge = down ? Math.min(...beyond.map((c) => c.box.top)) : Math.max(...beyond.map((c) => c.box.bottom));
  const row = beyond.filter(({ box }) => Math.abs((down ? box.top : box.bottom) - edge) < 40);
  row.sort((a, b) => Math.abs(a.box.left + a.box.width / 2 - middle) - Math.abs(b.box.left + b.box.width / 2 - middle));
  return row[0].link;
}
