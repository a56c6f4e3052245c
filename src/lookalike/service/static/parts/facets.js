// Filters: values of one column mean "or", columns mean "and".

import { get, said, thumb } from "../api.js";
import { count, digits, fill, h, icon, press, readable } from "../dom.js";
import { asked } from "../router.js";

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
    return h("button", { class: "chip", onclick: drop, "aria-label": `Remove filter ${column}: ${name}` },
      h("bdi", null, column === "area" ? name : `${column === "path" ? "folder" : column.replace("!", " not")}: ${name}`), icon("close"));
  });
}

/**
 * The sheet with all filters; counts follow the question and the other columns' filters.
 * @param {import("../router.js").State} state @param {(filters: string[]) => void} change
 */
export function open(state, change) {
  let chosen = [...state.f];
  let round = 0;
  const note = h("p", { class: "kept" });
  const body = h("div", { class: "facets" });
  const done = h("button", { class: "main", onclick: () => sheet.close() }, "Show results");
  const clear = h("button", { onclick: () => set([]) }, "Clear");
  const close = press("close", "Close", () => sheet.close(), { class: "quiet icon" });
  const sheet = h("dialog", { class: "sheet", "aria-label": "Filters", onclose: () => { sheet.remove(); document.getElementById("filters")?.focus({ preventScroll: true }); }, onclick: (event) => event.target === sheet && sheet.close() },
    h("div", { class: "inside" }, h("div", { class: "head" }, h("h2", null, "Filters"), close), note, body), h("div", { class: "foot" }, clear, done));
  const columns = new Map();

  function set(next) {
    chosen = next;
    change(next);
    refresh();
  }

  async function refresh() {
    const mine = ++round;
    const under = parts(chosen.find((f) => f.startsWith("path:")) ?? "path:").value.replace(/\*$/, "");
    const answer = await get(`/api/v1/facets?${asked({ ...state, f: chosen }, { limit: 1000, under })}`).catch((error) => { note.textContent = said(error); });
    if (mine !== round || !answer) return;
    done.textContent = `Show ${count(answer.pictures, "result")}`;
    note.textContent = answer.nearest === null ? "" : `Counts: among the ${digits(answer.nearest)} nearest, and of all.`;
    for (const { column, values } of answer.facets) {
      if (!columns.has(column)) columns.set(column, facet(column, () => chosen, set));
      columns.get(column)?.draw(values);
    }
    fill(body, [...columns.values()].map((one) => one.node), folders(under, answer.folders, () => chosen, set));
  }
  document.body.append(sheet);
  sheet.showModal();
  return refresh();
}

/** Everything below a folder: the way down to it, then the folders in it. */
function folders(under, rows, chosen, set) {
  if (!under && rows.length < 2) return null;
  const to = (folder) => () => set([...chosen().filter((f) => !f.startsWith("path:")), ...(folder ? [`path:${folder}*`] : [])]);
  const steps = under.split("/").filter(Boolean).map((name, k, all) => [name, `${all.slice(0, k + 1).join("/")}/`]);
  const link = (name, folder) => h("button", { class: "linkish", onclick: to(folder) }, h("bdi", null, name));
  return h("section", { class: "facet" }, h("h3", null, "folder"),
    steps.length ? h("p", { class: "row" }, link("all", ""), steps.map(([name, folder]) => ["›", link(name, folder)])) : null,
    h("div", { class: "folders" }, rows.map(({ folder, count: held }) => h("button", { class: "quiet", onclick: to(folder) },
      h("bdi", null, folder.slice(under.length)), h("small", null, digits(held))))));
}

function facet(column, chosen, set) {
  const list = h("div");
  const note = h("small");
  const find = h("input", { type: "search", "aria-label": `Find a value of ${column}`, oninput: () => draw(values) });
  const node = h("section", { class: "facet" }, h("h3", null, column), find, list, note);
  let values = [];
  let everything = false;

  function draw(next) {
    values = next;
    const wanted = find.value.toLowerCase();
    const mine = chosen().map(parts).filter((p) => p.column === column).map((p) => p.value);
    const hits = values.filter((v) => !wanted || readable(v.value).toLowerCase().includes(wanted));
    const first = everything || wanted ? hits : hits.slice(0, FIRST);
    const extra = values.filter((v) => mine.includes(v.value) && !first.includes(v));
    const most = Math.max(...values.map((v) => v.near ?? v.count), 1);
    fill(list, [...extra, ...first].map((v) => option(v, mine.includes(v.value), most)));
    const all = h("button", { class: "quiet", onclick: () => { everything = true; draw(values); } }, `Show all ${values.length}`);
    fill(note, hits.length > first.length ? all : hits.length ? null : "Nothing is called that.");
    find.placeholder = `Find in ${digits(values.length)}…`;
    find.hidden = values.length <= FIRST;
    node.hidden = values.length < 2 && !mine.length;
  }

  function option(v, on, most) {
    const filter = `${column}:${v.value}`;
    const change = () => set(on ? chosen().filter((f) => f !== filter) : [...chosen(), filter]);
    const all = digits(v.count);
    return h("label", { "--p": ((v.near ?? v.count) / most).toFixed(3) }, h("input", { type: "checkbox", checked: on, onchange: change }),
      h("span", null, column === "prototype" ? faces(column, v.value) : null, h("bdi", { title: v.value }, readable(v.value))),
      h("small", null, v.near === undefined ? all : `${digits(v.near)} of ${all}`));
  }
  return { node, draw };
}

/** A value by the pictures in its middle: a number alone says nothing. */
function faces(column, value) {
  const place = h("span", { class: "faces" });
  get(`/api/v1/facets/${encodeURIComponent(column)}/middle?${new URLSearchParams({ value })}`).then(({ items }) =>
    fill(place, items.map((item) => h("img", { src: thumb(item.thumb, 96), alt: "" }))));
  return place;
}
