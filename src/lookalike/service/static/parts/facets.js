// Filters: values of one column mean "or", columns mean "and"; counts follow the other columns' filters.

import { get } from "../api.js";
import { count, fill, h, icon, readable } from "../dom.js";

const FIRST = 12;

/** @param {string} filter `label:gull` */
export function parts(filter) {
  const place = filter.indexOf(":");
  return { column: filter.slice(0, place), value: filter.slice(place + 1) };
}

/** @param {string[]} filters @param {(filters: string[]) => void} change */
export function chips(filters, change) {
  return filters.map((filter) => {
    const { column, value } = parts(filter);
    const name = column === "area" ? "part of the map" : column === "label" ? readable(value) : value;
    const drop = () => change(filters.filter((f) => f !== filter));
    return h("button", { type: "button", class: "chip", onclick: drop, "aria-label": `Remove filter ${column}: ${name}` },
      h("bdi", null, column === "area" ? name : `${column === "path" ? "folder" : column.replace("!", " not")}: ${name}`), icon("close"));
  });
}

/**
 * The sheet with all filters.
 * @param {string[]} columns @param {string[]} filters @param {(filters: string[]) => void} change
 * @param {(filters: string[]) => Promise<number>} [total] how many pictures filters leave
 */
export function open(columns, filters, change, total) {
  let chosen = [...filters];
  const body = h("div", { class: "inside" });
  const done = h("button", { type: "button", class: "main", onclick: () => dialog.close() }, "Show results");
  const clear = h("button", { type: "button", onclick: () => set([]) }, "Clear");
  const close = h("button", { type: "button", class: "quiet icon", "aria-label": "Close", onclick: () => dialog.close() },
    icon("close"));
  const dialog = h("dialog", { class: "sheet", "aria-label": "Filters", onclose: () => dialog.remove() }, body,
    h("div", { class: "foot" }, clear, done));
  const draws = columns.map((column) => facet(column, () => chosen, set));

  /** @param {string[]} next */
  function set(next) {
    chosen = next;
    change(next);
    for (const draw of draws) draw.refresh();
    tell();
  }
  const tell = () => total?.(chosen).then((number) => (done.textContent = `Show ${count(number, "result")}`)).catch(() => {});
  fill(body, h("div", { class: "head" }, h("h2", null, "Filters"), close), draws.map((draw) => draw.node), folder(() => chosen, set));
  tell();
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  if (dialog instanceof HTMLDialogElement) dialog.showModal();
}

/** Everything below a folder. @param {() => string[]} chosen @param {(filters: string[]) => void} set */
function folder(chosen, set) {
  const now = parts(chosen().find((f) => f.startsWith("path:")) ?? "path:").value.replace(/\*$/, "");
  const field = /** @type {HTMLInputElement} */ (h("input", { type: "search", value: now, placeholder: "for example sea/2019/", "aria-label": "Only files whose path begins with", onchange: () => {
    const rest = chosen().filter((f) => !f.startsWith("path:"));
    set(field.value.trim() ? [...rest, `path:${field.value.trim()}*`] : rest);
  } }));
  return h("section", { class: "facet" }, h("h3", null, "folder"), field);
}

/** @param {string} column @param {() => string[]} chosen @param {(filters: string[]) => void} set */
function facet(column, chosen, set) {
  const list = h("div");
  const note = h("small");
  const find = h("input", { type: "search", placeholder: "Find", "aria-label": `Find a value of ${column}` });
  const node = h("section", { class: "facet" }, h("h3", null, column), find, list, note);
  /** @type {{value: string, count: number}[]} */
  let values = [];
  let everything = false;
  find.addEventListener("input", draw);

  function draw() {
    const wanted = find instanceof HTMLInputElement ? find.value.toLowerCase() : "";
    const mine = chosen().map(parts).filter((p) => p.column === column).map((p) => p.value);
    const hits = values.filter((v) => !wanted || readable(v.value).toLowerCase().includes(wanted));
    const first = everything || wanted ? hits : hits.slice(0, FIRST);
    const extra = values.filter((v) => mine.includes(v.value) && !first.includes(v));
    fill(list, [...extra, ...first].map((v) => option(v, mine.includes(v.value))));
    const rest = hits.length - first.length;
    const all = h("button", { type: "button", class: "quiet", onclick: () => { everything = true; draw(); } },
      `Show all ${values.length}`);
    fill(note, rest > 0 ? all : hits.length ? null : "Nothing is called that.");
    find.hidden = values.length <= FIRST;
  }

  /** @param {{value: string, count: number}} v @param {boolean} on */
  function option(v, on) {
    const filter = `${column}:${v.value}`;
    const change = () => set(on ? chosen().filter((f) => f !== filter) : [...chosen(), filter]);
    return h("label", null, h("input", { type: "checkbox", checked: on, onchange: change }),
      h("bdi", { title: v.value }, readable(v.value)),
      h("small", { "aria-label": count(v.count, "picture") }, v.count.toLocaleString("en-GB")));
  }

  async function refresh() {
    const query = new URLSearchParams(chosen().map((f) => ["f", f]));
    values = (await get(`/api/v1/facets/${encodeURIComponent(column)}?limit=1000&${query}`)).values;
    node.hidden = values.length < 2;
    draw();
  }
  refresh();
  return { node, refresh };
}
