// Justified rows of images with keyboard navigation.

import { thumbUrl } from "../api.js";
import { h } from "../dom.js";
import { caption, title } from "./score.js";

/**
 * @param {any} item
 * @param {{href: string, tools?: any[], eager?: boolean, plain?: boolean, rough?: boolean}} options
 */
export function cell(item, { href, tools = [], eager = false, plain = false, rough = false }) {
  const ratio = Math.min(Math.max(item.ratio || 1, 0.3), 4);
  const image = h("img", {
    src: thumbUrl(item.thumb, 256),
    srcset: `${thumbUrl(item.thumb, 256)} 256w, ${thumbUrl(item.thumb, 512)} 512w`,
    sizes: `${Math.round(240 * Math.max(ratio, 1))}px`,
    alt: title(item),
    width: Math.round(256 * Math.min(ratio, 1)),
    height: Math.round(256 / Math.max(ratio, 1)),
    loading: eager ? "eager" : "lazy",
    fetchpriority: eager ? "high" : null,
    decoding: "async",
  });
  const shot = h("a.shot", { href, "data-id": item.id, tabindex: -1 }, image);
  if (item.copies?.length) shot.append(h("span.copies", `+${item.copies.length}`));
  return h(
    "li",
    { class: `cell ${item.group ?? ""}${rough ? " rough" : ""}`, "--ar": ratio, "--mean": item.color },
    shot,
    tools.length ? h("div.tools", tools) : null,
    plain ? null : caption(item),
  );
}

/** @param {any[]} cells @param {{weak?: boolean, label: string}} options */
export function grid(cells, { weak = false, label }) {
  const node = h("ul", { class: weak ? "grid weak" : "grid", "aria-label": label }, cells);
  resized.observe(node);
  return node;
}

const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) alignLastRow(target);
});

/** Give the last row, which does not fill its line, the height of the others. */
function alignLastRow(node) {
  const cells = [...node.children];
  for (const cell of cells) cell.style.flex = "";
  const top = cells.at(-1)?.offsetTop;
  const last = cells.filter((cell) => cell.offsetTop === top);
  const above = cells[cells.length - last.length - 1];
  if (!above || getComputedStyle(above).flexGrow === "0") return; // one row, or the fixed columns of a phone
  const ratio = (cell) => Number(cell.style.getPropertyValue("--ar"));
  const height = above.getBoundingClientRect().width / ratio(above);
  for (const cell of last) cell.style.flex = `0 0 ${height * ratio(cell)}px`;
}

const initialized = new WeakSet();
/** One tab stop for all images: arrow keys move, a long press shows tools. @param {HTMLElement} root */
export function rovingFocus(root) {
  const links = () => [...root.querySelectorAll("a.shot")];
  links()[0]?.setAttribute("tabindex", "0");
  if (initialized.has(root)) return;
  initialized.add(root);
  root.addEventListener("focusin", (event) => {
    if (!(event.target instanceof Element) || !event.target.matches("a.shot")) return;
    for (const link of links()) link.setAttribute("tabindex", link === event.target ? "0" : "-1");
  });
  onLongPress(root, (target) => {
    const chosen = target.closest(".cell");
    for (const one of root.querySelectorAll(".cell.chosen")) if (one !== chosen) one.classList.remove("chosen");
    chosen?.classList.toggle("chosen");
  });
  root.addEventListener("keydown", (event) => {
    const here = event.target;
    if (!(here instanceof Element) || !here.matches("a.shot")) return;
    const next = neighbor(links(), here, event.key);
    if (next) {
      event.preventDefault();
      next.focus();
      next.scrollIntoView({ block: "nearest" });
    }
  });
}

function neighbor(links, here, key) {
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

/** Call `hear` on a long press and `end` when it is released. */
export function onLongPress(node, hear, end) {
  let timer = 0;
  let held = false;
  let from = [0, 0];
  const stop = () => {
    clearTimeout(timer);
    timer = 0;
  };
  node.addEventListener("pointerdown", (event) => {
    held = false;
    from = [event.clientX, event.clientY];
    stop();
    if (event.pointerType === "touch" && event.isPrimary)
      timer = setTimeout(() => {
        held = true;
        hear(event.target);
      }, 400);
  });
  node.addEventListener(
    "pointermove",
    (event) => Math.hypot(event.clientX - from[0], event.clientY - from[1]) > 10 && stop(),
  );
  for (const name of ["pointerup", "pointercancel"])
    node.addEventListener(name, () => {
      stop();
      if (held) end?.();
    });
  // Suppress the browser's context menu and the click that follow a long press.
  node.addEventListener("contextmenu", (event) => (held || timer) && event.preventDefault());
  node.addEventListener(
    "click",
    (event) => {
      if (held) {
        held = false;
        event.preventDefault();
        event.stopPropagation();
      }
    },
    true,
  );
}
