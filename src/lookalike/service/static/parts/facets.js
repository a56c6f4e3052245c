// Filters: values of one column mean "or", columns mean "and".

import { get, said, thumb } from "../api.js";
import { action, count, digits, fill, h, icon, readable } from "../dom.js";
import { asked } from "../router.js";
import { value as known } from "../store.js";
import { dialog } from "./dialogs.js";

const FIRST = 12;

/** A column's name may hold a colon, or be `area` as a part of the map is. @param {string} filter `label:gull` */
export function parts(filter) {
  const names = (known("info")?.index.columns ?? []).flatMap((name) => [name, `${name}!`]).filter((name) => filter.startsWith(`${name}:`));
  const column = names.length ? names.reduce((a, b) => (b.length > a.length ? b : a)) : filter.slice(0, filter.indexOf(":"));
  const value = filter.slice(column.length + 1).replace(/\\\*$/, "*");
  return { column, value, drawn: /^area:\d+\.([\da-f]{6}){3,}$/i.test(filter) };
}

/** The filter for one whole value: a star at its end must not read as "starts with". */
const exactly = (column, value) => `${column}:${value.replace(/\*$/, "\\*")}`;

/** @param {string[]} filters @param {(filters: string[]) => void} change */
export function chips(filters, change) {
  return filters.map((filter) => {
    const { column, value, drawn } = parts(filter);
    const name = drawn ? "part of the map" : column === "label" ? readable(value) : value;
    const drop = () => change(filters.filter((f) => f !== filter));
    return h("button.chip", { onclick: drop, "aria-label": `Remove filter ${column}: ${name}` },
      h("bdi", drawn ? name : `${column === "path" ? "folder" : column.replace("!", " not")}: ${name}`), icon("close"));
  });
}

/**
 * The sheet with all filters; counts follow the question and the other columns' filters.
 * @param {import("../router.js").State} state @param {(filters: string[]) => void} change
 */
export function open(state, change) {
  let chosen = [...state.f];
  let round = 0;
  const note = h("p.kept");
  const body = h("div.facets");
  const done = action("Show results", () => sheet.close(), ".main");
  const clear = action("Clear", () => set([]));
  const lists = new Map();
  const about = (others) => asked({ ...state, f: chosen, q: state.q.startsWith("here.") ? "" : state.q }, { limit: 1000, ...others });
  const flip = (filter) => set(chosen.includes(filter) ? chosen.filter((f) => f !== filter) : [...chosen, filter]);
  const enter = (folder) => set([...chosen.filter((f) => !f.startsWith("path:")), ...(folder ? [`path:${folder}*`] : [])]);
  let inside = null;

  function set(next) {
    chosen = next;
    change(next);
    refresh();
  }

  async function refresh() {
    const now = ++round;
    const under = parts(chosen.find((f) => f.startsWith("path:")) ?? "path:").value.replace(/\*$/, "");
    const answer = await get(`facets?${about({ under })}`).catch((error) => { note.textContent = said(error); });
    if (now !== round || !answer) return;
    done.textContent = `Show ${count(answer.images, "result")}`;
    note.textContent = answer.nearest === null ? "" : `Counts: among the ${digits(answer.nearest)} nearest, and of all.`;
    for (const { column, values, total } of answer.facets) {
      const own = (v) => chosen.includes(exactly(column, v.value));
      if (!lists.has(column)) {
        const find = (words) => get(`facets/${encodeURIComponent(column)}?${about({ find: words })}`);
        lists.set(column, list(column, find, (v, most) => option(column, v, most, own(v), flip), own));
      }
      lists.get(column).draw(values, total);
    }
    if (inside?.under !== under) inside = folders(under, about, enter);
    inside.draw(named(answer.folders), answer.folders_total);
    fill(body, [...lists.values()].map((one) => one.node), under || answer.folders.length > 1 ? inside.node : null);
  }
  const sheet = dialog("Filters", note, body);
  sheet.classList.add("sheet");
  sheet.append(h("div.foot", clear, done));
  sheet.addEventListener("close", () => document.getElementById("filters")?.focus({ preventScroll: true }));
  return refresh();
}

const named = (rows) => rows.map((row) => ({ value: row.folder, count: row.count }));
/** Everything below a folder: the way down to it, then the folders in it. */
function folders(under, about, go) {
  const find = (words) => get(`folders?${about({ under, find: words })}`).then(({ folders: rows, total }) => ({ values: named(rows), total }));
  const link = (name, folder) => h("button.linkish", { onclick: () => go(folder) }, h("bdi", name));
  const line = (v) => h("button.quiet", { onclick: () => go(v.value) }, h("bdi", v.value.slice(under.length)), h("small", digits(v.count)));
  const steps = under.split("/").filter(Boolean).map((name, k, all) => ["›", link(name, `${all.slice(0, k + 1).join("/")}/`)]);
  const made = list("folder", find, line, () => false);
  if (under) made.node.firstChild.after(h("p.row", link("all", ""), steps));
  return { ...made, under };
}

/**
 * Values with a field to find some of them; the server looks among those that are not here.
 * @param {string} name @param {(words: string) => Promise<{values: any[], total: number}>} ask
 * @param {(v: any, most: number) => any} line @param {(v: any) => boolean} own whether it is chosen
 */
function list(name, ask, line, own) {
  const place = h(name === "folder" ? "div.folders" : "div");
  const note = h("small");
  const find = h("input", { type: "search", "aria-label": `Find a value of ${name}`, oninput: () => look() });
  const node = h("section.facet", h("h3", name), find, place, note);
  let [values, total, everything, timer] = [[], 0, false, 0];

  function look() {
    const wanted = find.value.trim().toLowerCase();
    clearTimeout(timer);
    if (!wanted || total <= values.length) return show(values.filter((v) => readable(v.value).toLowerCase().includes(wanted)), wanted);
    const mine = timer = setTimeout(() => ask(wanted).then((found) => mine === timer && show(found.values, wanted, found.total)).catch((error) => { note.textContent = said(error); }), 200);
  }

  function show(hits, wanted, all = wanted ? hits.length : total) {
    const first = everything || wanted ? hits : hits.slice(0, FIRST);
    const extra = values.filter((v) => own(v) && !first.some((one) => one.value === v.value));
    const most = Math.max(...values.map((v) => v.near ?? v.count), 1);
    const range = all > hits.length ? `the first ${digits(hits.length)} of ${digits(all)}` : `all ${digits(all)}`;
    fill(place, [...extra, ...first].map((v) => line(v, most)));
    fill(note, hits.length > first.length ? action(`Show ${range}`, () => { everything = true; look(); }, ".quiet")
      : all > hits.length ? `These are ${range}.` : hits.length || !wanted ? null : "Nothing is called that.");
  }

  function draw(next, all) {
    [values, total] = [next, all ?? next.length];
    find.placeholder = `Find in ${digits(total)}…`;
    find.hidden = total <= FIRST;
    node.hidden = name !== "folder" && total < 2 && !values.some(own);
    look();
  }
  return { node, draw };
}

function option(column, v, most, on, flip) {
  const all = digits(v.count);
  return h("label", { "--p": ((v.near ?? v.count) / most).toFixed(3) }, h("input", { type: "checkbox", checked: on, onchange: () => flip(exactly(column, v.value)) }),
    h("span", column === "prototype" ? faces(column, v.value) : null, h("bdi", { title: v.value }, readable(v.value))),
    h("small", v.near === undefined ? all : `${digits(v.near)} of ${all}`));
}

/** A value by the images in its middle, asked for when it is seen: a number alone says nothing. */
function faces(column, value) {
  const place = h("span.faces");
  const ask = () => get(`facets/${encodeURIComponent(column)}/middle?${new URLSearchParams({ value })}`).then(({ items }) =>
    fill(place, items.map((item) => h("img", { src: thumb(item.thumb, 96), alt: "" })))).catch((error) => { said(error); if (error.retry) setTimeout(watch, 1000 * error.retry); });
  const seen = new IntersectionObserver(([{ isIntersecting }]) => { if (isIntersecting) { seen.disconnect(); ask(); } });
  const watch = () => seen.observe(place);
  watch();
  return place;
}
