// Filters: values of one column are combined by OR, columns by AND.

import { get, messageOf, thumbUrl } from "../api.js";
import { actionButton, fill, formatNumber, h, icon, plural, readableLabel } from "../dom.js";
import { queryParams } from "../router.js";
import { getState } from "../store.js";
import { dialog } from "./dialogs.js";

const INITIAL_VALUES = 12;

/**
 * Split a filter; a column's name may contain a colon, or be `area` like a region of the map.
 * @param {string} filter for example `label:gull`
 */
export function parseFilter(filter) {
  const names = (getState("info")?.index.columns ?? [])
    .flatMap((name) => [name, `${name}!`])
    .filter((name) => filter.startsWith(`${name}:`));
  const column = names.length
    ? names.reduce((a, b) => (b.length > a.length ? b : a))
    : filter.slice(0, filter.indexOf(":"));
  const value = filter.slice(column.length + 1).replace(/\\\*$/, "*");
  return { column, value, drawn: /^area:\d+\.([\da-f]{6}){3,}$/i.test(filter) };
}

/** The filter for one exact value: a trailing star is escaped, since it would mean "starts with". */
const exactFilter = (column, value) => `${column}:${value.replace(/\*$/, "\\*")}`;

/** @param {string[]} filters @param {(filters: string[]) => void} change */
export function chips(filters, change) {
  return filters.map((filter) => {
    const { column, value, drawn } = parseFilter(filter);
    const name = drawn ? "part of the map" : column === "label" ? readableLabel(value) : value;
    const drop = () => change(filters.filter((f) => f !== filter));
    return h(
      "button.chip",
      { onclick: drop, "aria-label": `Remove filter ${column}: ${name}` },
      h("bdi", drawn ? name : `${column === "path" ? "folder" : column.replace("!", " not")}: ${name}`),
      icon("close"),
    );
  });
}

/**
 * Open the sheet with all filters; counts follow the query and the other columns' filters.
 * @param {import("../router.js").State} state @param {(filters: string[]) => void} change
 */
export function openFilters(state, change) {
  let chosen = [...state.f];
  let round = 0;
  const note = h("p.hint");
  const body = h("div.facets");
  const done = actionButton("Show results", () => sheet.close(), ".main");
  const clear = actionButton("Clear", () => set([]));
  const lists = new Map();
  const about = (others) =>
    queryParams({ ...state, f: chosen, q: state.q.startsWith("here.") ? "" : state.q }, { limit: 1000, ...others });
  const flip = (filter) => set(chosen.includes(filter) ? chosen.filter((f) => f !== filter) : [...chosen, filter]);
  const enter = (folder) =>
    set([...chosen.filter((f) => !f.startsWith("path:")), ...(folder ? [`path:${folder}*`] : [])]);
  let inside = null;

  function set(next) {
    chosen = next;
    change(next);
    refresh();
  }

  async function refresh() {
    const now = ++round;
    const under = parseFilter(chosen.find((f) => f.startsWith("path:")) ?? "path:").value.replace(/\*$/, "");
    const answer = await get(`facets?${about({ under })}`).catch((error) => {
      note.textContent = messageOf(error);
    });
    if (now !== round || !answer) return;
    done.textContent = `Show ${plural(answer.images, "result")}`;
    note.textContent =
      answer.nearest === null ? "" : `Counts: among the ${formatNumber(answer.nearest)} nearest, and in total.`;
    for (const { column, values, total } of answer.facets) {
      const own = (v) => chosen.includes(exactFilter(column, v.value));
      if (!lists.has(column)) {
        const find = (words) => get(`facets/${encodeURIComponent(column)}?${about({ find: words })}`);
        lists.set(
          column,
          valueList(column, find, (v, most) => valueOption(column, v, most, own(v), flip), own),
        );
      }
      lists.get(column).draw(values, total, answer.images);
    }
    if (inside?.under !== under) inside = folderList(under, about, enter);
    inside.draw(folderValues(answer.folders), answer.folders_total);
    fill(
      body,
      [...lists.values()].map((one) => one.node),
      answer.ranges?.map(({ column, kind }) => rangeInputs(column, kind, chosen, set)),
      under || answer.folders.length > 1 ? inside.node : null,
    );
    if ([...body.children].every((node) => node.hidden)) fill(body, nothingToFilter());
  }
  const sheet = dialog("Filters", note, body);
  sheet.classList.add("sheet");
  sheet.append(h("div.foot", clear, done));
  sheet.addEventListener("close", () => document.getElementById("filters")?.focus({ preventScroll: true }));
  return refresh();
}

/** What could be filtered by, where there is nothing yet. */
const nothingToFilter = () =>
  h(
    "p.hint",
    "There is nothing to filter by in this index yet. Images in subfolders can be filtered by folder, and by label if ",
    "a subfolder is a class; a table of images by its columns; date, camera and place after ",
    h("code", "lookalike index FOLDER --exif"),
    "; tags once you give some in Browse.",
  );

/** Two fields for the bounds of a column. @param {string} kind "date" or "number" */
function rangeInputs(column, kind, chosen, set) {
  const own = chosen.find((f) => parseFilter(f).column === column) ?? "";
  const bounds = parseFilter(own || `${column}:..`).value.split("..");
  const change = () => {
    const [low, high] = fields.map((field) => field.value.trim());
    set([...chosen.filter((f) => f !== own), ...(low || high ? [`${column}:${low}..${high}`] : [])]);
  };
  const fields = ["from", "to"].map((word, k) =>
    h("input", {
      type: kind,
      step: kind === "number" ? "any" : null,
      value: bounds[k] ?? "",
      "aria-label": `${column} ${word}`,
      onchange: change,
    }),
  );
  return h("section.facet", h("h3", column), h("div.row.range", fields[0], "to", fields[1]));
}

const folderValues = (rows) => rows.map((row) => ({ value: row.folder, count: row.count }));
/** The folders below a folder, with the path down to it. */
function folderList(under, about, go) {
  const find = (words) =>
    get(`folders?${about({ under, find: words })}`).then(({ folders: rows, total }) => ({
      values: folderValues(rows),
      total,
    }));
  const link = (name, folder) => h("button.linkish", { onclick: () => go(folder) }, h("bdi", name));
  const line = (v) =>
    h(
      "button.quiet",
      { onclick: () => go(v.value) },
      h("bdi", v.value.slice(under.length)),
      h("small", formatNumber(v.count)),
    );
  const steps = under
    .split("/")
    .filter(Boolean)
    .map((name, k, all) => ["›", link(name, `${all.slice(0, k + 1).join("/")}/`)]);
  const made = valueList("folder", find, line, () => false);
  if (under) made.node.firstChild.after(h("p.row", link("all", ""), steps));
  return { ...made, under };
}

/**
 * A list of values with a search field; values that are not loaded are searched on the server.
 * @param {string} name @param {(words: string) => Promise<{values: any[], total: number}>} fetchValues
 * @param {(v: any, most: number) => any} line @param {(v: any) => boolean} own whether it is selected
 */
function valueList(name, fetchValues, line, own) {
  const place = h(name === "folder" ? "div.folders" : "div");
  const note = h("small");
  const find = h("input", { type: "search", "aria-label": `Find a value of ${name}`, oninput: () => update() });
  const node = h("section.facet", h("h3", name), find, place, note);
  let [values, total, everything, timer] = [[], 0, false, 0];

  function update() {
    const words = find.value.trim().toLowerCase();
    clearTimeout(timer);
    if (!words || total <= values.length)
      return show(
        values.filter((v) => readableLabel(v.value).toLowerCase().includes(words)),
        words,
      );
    const mine = setTimeout(
      () =>
        fetchValues(words)
          .then((answer) => mine === timer && show(answer.values, words, answer.total))
          .catch((error) => {
            note.textContent = messageOf(error);
          }),
      200,
    );
    timer = mine;
  }

  function show(hits, words, all = words ? hits.length : total) {
    const first = everything || words ? hits : hits.slice(0, INITIAL_VALUES);
    const extra = values.filter((v) => own(v) && !first.some((one) => one.value === v.value));
    const most = Math.max(...values.map((v) => v.near ?? v.count), 1);
    const range =
      all > hits.length ? `the first ${formatNumber(hits.length)} of ${formatNumber(all)}` : `all ${formatNumber(all)}`;
    fill(
      place,
      [...extra, ...first].map((v) => line(v, most)),
    );
    fill(
      note,
      hits.length > first.length
        ? actionButton(
            `Show ${range}`,
            () => {
              everything = true;
              update();
            },
            ".quiet",
          )
        : all > hits.length
          ? `These are ${range}.`
          : hits.length || !words
            ? null
            : "No matches.",
    );
  }

  /** Show other values; a single one that all `images` have is no choice. */
  function draw(next, all, images = 0) {
    [values, total] = [next, all ?? next.length];
    find.placeholder = `Find in ${formatNumber(total)}…`;
    find.hidden = total <= INITIAL_VALUES;
    const choice = total > 1 || values.some((v) => v.count < images);
    node.hidden = name !== "folder" && !choice && !values.some(own);
    update();
  }
  return { node, draw };
}

function valueOption(column, v, most, on, flip) {
  const all = formatNumber(v.count);
  return h(
    "label",
    { "--p": ((v.near ?? v.count) / most).toFixed(3) },
    h("input", { type: "checkbox", checked: on, onchange: () => flip(exactFilter(column, v.value)) }),
    h(
      "span",
      column === "prototype" ? typicalImages(column, v.value) : null,
      h("bdi", { title: v.value }, readableLabel(v.value)),
    ),
    h("small", v.near === undefined ? all : `${formatNumber(v.near)} of ${all}`),
  );
}

/** Typical images of a value, loaded when visible. */
function typicalImages(column, value) {
  const place = h("span.faces");
  const fetchValues = () =>
    get(`facets/${encodeURIComponent(column)}/typical?${new URLSearchParams({ value })}`)
      .then(({ items }) =>
        fill(
          place,
          items.map((item) => h("img", { src: thumbUrl(item.thumb, 96), alt: "" })),
        ),
      )
      .catch((error) => {
        messageOf(error);
        if (error.retry) setTimeout(watch, 1000 * error.retry);
      });
  const seen = new IntersectionObserver(([{ isIntersecting }]) => {
    if (isIntersecting) {
      seen.disconnect();
      fetchValues();
    }
  });
  const watch = () => seen.observe(place);
  watch();
  return place;
}
