// DOM helpers. Elements are never made from HTML strings, so a file name cannot become markup.

import { messageOf } from "./api.js";

/**
 * Create an element.
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
  if (props?.constructor !== Object) return appendChildren(node, [props, children]);
  for (const [name, value] of Object.entries(props)) {
    if ((value ?? false) === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) node.style.setProperty(name, String(value));
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  return appendChildren(node, children);
}

function appendChildren(node, children) {
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

/** A horizontally scrolling table. @param {string} name @param {string[]} heads @param {any[][]} rows */
export const table = (name, heads, rows) =>
  h(
    "div.scroll",
    { tabindex: 0, role: "region", "aria-label": name },
    h(
      "table",
      null,
      h(
        "thead",
        h(
          "tr",
          heads.map((head) => h("th", { scope: "col" }, head)),
        ),
      ),
      h(
        "tbody",
        rows.map((cells) =>
          h(
            "tr",
            cells.map((cell) => h("td", cell)),
          ),
        ),
      ),
    ),
  );

export const row = (...children) => h("div.row", children);

/**
 * A button with an icon; its name is the label and the tooltip.
 * @param {string} symbol @param {string} name @param {() => void} act @param {Record<string, any>} [others]
 */
export const iconButton = (symbol, name, act, others) =>
  h("button.icon", { title: name, "aria-label": name, onclick: act, ...others }, icon(symbol));

/** Wrap a function so that a refused request shows a toast. @param {(...args: any[]) => any} act */
export const withErrorToast =
  (act) =>
  async (...args) => {
    try {
      await act(...args);
    } catch (error) {
      toast(messageOf(error));
    }
  };

/**
 * A button whose refused requests show a toast.
 * @param {any} words @param {(event: any) => any} act @param {string} [classes] for example `.main`
 */
export const actionButton = (words, act, classes = "") =>
  h(`button${classes}`, { onclick: withErrorToast(act) }, words);

/** @param {number} value */
export const formatNumber = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, ","); // Intl needs 30 ms on first use

/** A number as text with a minus sign instead of a hyphen. @param {number | string} value */
export const withMinus = (value) => String(value).replaceAll("-", "−");

/** @param {number} value @param {number} [digits] after the point */
export const decimal = (value, digits = 3) => withMinus(value.toFixed(digits));

/** A time stamp without seconds. @param {string} time */
export const formatTime = (time) => joinText(time).replace("T", " ").slice(0, 16);

/** @param {number} value @param {string} one @param {string} [many] */
export function plural(value, one, many) {
  return `${formatNumber(value)} ${value === 1 ? one : (many ?? `${one}s`)}`;
}

/** @param {any} label a text, several, or none */
export function joinText(label) {
  return Array.isArray(label) ? label.join(", ") : (label ?? "");
}

/** A label such as `001.Black_footed_Albatross` as readable text. */
export function readableLabel(label) {
  return joinText(label)
    .replace(/^\d{1,4}[.\-_ ]+(?=\D)/, "")
    .replaceAll("_", " ");
}

/** @param {string} path */
export function fileName(path) {
  return path.split("/").pop() ?? path;
}

/** Show a short message. @param {string} message */
export function toast(message) {
  const node = h("div.toast", message);
  document.getElementById("toasts")?.append(node);
  setTimeout(() => node.remove(), 4000);
}
