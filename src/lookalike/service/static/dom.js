// Elements without HTML strings: the policy forbids them, and so nothing a file is named can become markup.

import { said } from "./api.js";

/**
 * @param {string} tag with its classes, `p.empty`
 * @param {any} [props] `on…` are listeners, `--x` custom properties, the rest attributes; or the first child
 * @param {...any} children nodes, texts, arrays of them; null and false are left out
 * @returns {any} the element
 */
export function h(tag, props, ...children) {
  const [kind, ...classes] = tag.split(".");
  const node = document.createElement(kind);
  if (node instanceof HTMLButtonElement) node.type = "button";
  if (classes.length) node.className = classes.join(" ");
  if (props?.constructor !== Object) return put(node, [props, children]);
  for (const [name, value] of Object.entries(props)) {
    if ((value ?? false) === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) node.style.setProperty(name, String(value));
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  return put(node, children);
}

function put(node, children) {
  node.append(...children.flat(9).filter((child) => (child ?? false) !== false));
  return node;
}

/** @param {string} name of a symbol in icons.svg */
export function icon(name) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("class", "i");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(space, "use");
  use.setAttribute("href", `/static/icons.svg#${name}`);
  svg.append(use);
  return svg;
}

/** @param {Element} parent @param {...any} children */
export function fill(parent, ...children) {
  parent.replaceChildren(...children.flat(9).filter(Boolean));
}

/** A table that scrolls inside itself. @param {string} name @param {string[]} heads @param {any[][]} rows */
export const table = (name, heads, rows) => h("div.scroll", { tabindex: 0, role: "region", "aria-label": name }, h("table", null,
  h("thead", h("tr", heads.map((head) => h("th", { scope: "col" }, head)))), h("tbody", rows.map((cells) => h("tr", cells.map((cell) => h("td", cell)))))));

export const row = (...children) => h("div.row", children);

/** An icon as a button; its name is said and shown. @param {string} symbol @param {string} name @param {() => void} act @param {Record<string, any>} [others] */
export const press = (symbol, name, act, others) => h("button.icon", { title: name, "aria-label": name, onclick: act, ...others }, icon(symbol));

/** What may be refused, and then says so. @param {(...args: any[]) => any} act */
export const guarded = (act) => async (...args) => {
  try {
    await act(...args);
  } catch (error) {
    toast(said(error));
  }
};

/** A button that says so when it is refused. @param {any} words @param {(event: any) => any} act @param {string} [classes] `.main` */
export const action = (words, act, classes = "") => h(`button${classes}`, { onclick: guarded(act) }, words);

/** @param {number} value */
export const digits = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, ","); // Intl takes 30 ms to begin with

/** A moment, to the minute. @param {string} time */
export const minute = (time) => text(time).replace("T", " ").slice(0, 16);

/** @param {number} value @param {string} one @param {string} [many] */
export function count(value, one, many) {
  return `${digits(value)} ${value === 1 ? one : many ?? `${one}s`}`;
}

/** @param {any} label a text, several, or none */
export function text(label) {
  return Array.isArray(label) ? label.join(", ") : label ?? "";
}

/** A folder name such as `001.Black_footed_Albatross`, as a person would write it. */
export function readable(label) {
  return text(label).replace(/^\d{1,4}[.\-_ ]+(?=\D)/, "").replaceAll("_", " ");
}

/** @param {string} path */
export function fileName(path) {
  return path.split("/").pop() ?? path;
}

/** @param {string} sentence */
export function toast(sentence) {
  const node = h("div.toast", sentence);
  document.getElementById("toasts")?.append(node);
  setTimeout(() => node.remove(), 4000);
}
