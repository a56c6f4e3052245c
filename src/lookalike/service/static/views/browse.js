// Browse: all images in order with an outline, and a selection that can be searched, tagged, exported and moved.

import * as api from "../api.js";
import { chips, openFilters } from "../components/filters.js";
import { errorBanner } from "../components/messages.js";
import { title } from "../components/score.js";
import { createSelection } from "../components/selection.js";
import { tileGrid } from "../components/tiles.js";
import { fill, formatNumber, h, icon, plural, row } from "../dom.js";
import { navigate, readUrl, savedScroll, urlFor } from "../router.js";
import { getState, preference, subscribe } from "../store.js";
import { selectionBar } from "./browse_actions.js";

const PAGE = 100;
const MAX_PAGES = 60; // that are kept
const MONTHS = "January February March April May June July August September October November December".split(" ");

let view = null;
let allSoon = false;
/** Select everything in the next view that is opened, as after a lasso on the map. */
export function selectAll() {
  allSoon = true;
}

export function leave() {
  view?.close();
  view = null;
}

export async function render(main, _info, state, how) {
  if (!view || !main.contains(view.node)) {
    leave();
    view = createView(main);
  }
  await view.show(state);
  if (how === "back") scrollTo(0, savedScroll());
}

/** Clear the selection; whether there was one. */
export const onEscape = () => Boolean(view?.clear());
/** @param {KeyboardEvent} event */
export const key = (event) => Boolean(view?.key(event));

/** Name of a section: a month or a folder. */
const sectionName = (order, name) =>
  order === "folder"
    ? name || "top folder"
    : /^\d{4}-\d\d$/.test(name)
      ? `${MONTHS[Number(name.slice(5)) - 1]} ${name.slice(0, 4)}`
      : name || "without a date";

const rowHeight = () => (innerWidth <= 640 ? 104 : 150) * 1.25 ** Number(preference("size"));

function createView(main) {
  let state = readUrl();
  let order = "date";
  let data = { version: "", ratios: [], sections: [], taken: false };
  let starts = [];
  let active = 0;
  let abort = new AbortController();
  /** @type {Map<number, any[] | null>} */
  const pages = new Map();
  const item = (place) => pages.get(Math.floor(place / PAGE))?.[place % PAGE];
  const parameters = (others) => {
    const query = new URLSearchParams({ order, ...others });
    for (const f of state.f) query.append("f", f);
    return query;
  };

  const grid = tileGrid({ label: "Images", heading, fill: drawTile, need });
  const outline = h("nav.outline", { "aria-label": "Outline" });
  const head = h("div.browse-head");
  const count = h("p.hint", { role: "status" });
  const bar = selectionBar({
    selected: () => ({ order, f: state.f, version: data.version, ranges: selection.ranges() }),
    count: () => selection.count,
    items: selectedItems,
    folders: () => (order === "folder" ? data.sections.map((one) => one.name).filter(Boolean) : []),
    clear,
    reload: (again) => load(again),
  });
  const selection = createSelection(() => {
    bar.update();
    grid.refresh();
  });
  const node = h("div.screen.browse", h("h1.unseen", "Browse"), head, outline, h("div", count, grid.node), bar.node);
  fill(main, node);

  /** The heading of a section, with a button that selects all of it. */
  function heading(section) {
    const { name, count: size } = data.sections[section];
    const [start, stop] = [starts[section], starts[section] + size];
    const words = sectionName(order, name);
    const flip = () => selection.setRange(start, stop, !selection.covers(start, stop));
    return [
      h("h2", h("bdi", words)),
      h("button.quiet", { onclick: flip, "aria-label": `Select ${words}` }, `Select ${formatNumber(size)}`),
    ];
  }

  function drawTile(tile, place) {
    const one = item(place);
    if (one && tile.dataset.item !== one.id) {
      tile.dataset.item = one.id;
      const side = data.ratios[place] > 160 ? 512 : 256;
      tile.style.setProperty("--mean", one.color);
      const image = one.thumb
        ? h("img", { src: api.thumbUrl(one.thumb, side), alt: title(one), decoding: "async" })
        : h("span", title(one));
      fill(tile, image, h("span.tick", icon("check")), h("span.tile-tags"));
    }
    if (one) {
      const tags = [one.columns.tags ?? []].flat().join(" · ");
      const label = tile.querySelector(".tile-tags");
      if (label.textContent !== tags) label.textContent = tags;
    }
    tile.setAttribute("aria-selected", String(selection.has(place)));
    tile.classList.toggle("active", place === active);
  }

  let needTimer = 0;
  /** Load what is in view once scrolling pauses. */
  function need(start, stop) {
    clearTimeout(needTimer);
    needTimer = setTimeout(() => loadVisible(start, stop), 40);
  }

  /** Load the pages of the images in view; those far away are dropped. */
  function loadVisible(start, stop) {
    const { version } = data;
    for (let page = Math.floor(start / PAGE); page * PAGE < stop; page++) {
      if (pages.has(page)) continue;
      pages.set(page, null);
      loadPage(page, version);
    }
    for (const page of pages.keys()) {
      if (pages.size <= MAX_PAGES) break;
      if (page * PAGE > stop + 10 * PAGE || (page + 1) * PAGE < start - 10 * PAGE) pages.delete(page);
    }
    const now = grid.current();
    for (const link of outline.querySelectorAll("a"))
      if (Number(link.dataset.section) === now) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
  }

  async function loadPage(page, version) {
    const query = parameters({ version, offset: String(page * PAGE), limit: String(PAGE) });
    try {
      const { items } = await api.getFresh(`browse/items?${query}`, abort.signal);
      if (version !== data.version) return;
      pages.set(page, items);
      grid.refresh();
    } catch (error) {
      if (abort.signal.aborted) return;
      api.messageOf(error);
      pages.delete(page);
      if (error.status === 409) load(true);
      else
        setTimeout(
          () => version === data.version && loadVisible(page * PAGE, page * PAGE + 1),
          1000 * (error.retry || 4),
        );
    }
  }

  /** The selected images; fetched where they are not loaded. */
  async function selectedItems() {
    const parts = selection.ranges().map(async ([start, stop]) => {
      const query = parameters({ version: data.version, offset: String(start), limit: String(stop - start) });
      return (await api.getFresh(`browse/items?${query}`)).items;
    });
    return (await Promise.all(parts)).flat();
  }

  /** Load the order. @param {boolean} again keep the place and, if nothing changed, the selection */
  async function load(again) {
    const answer = await api.getFresh(`browse?${parameters()}`, abort.signal);
    const same = again && answer.version === data.version;
    data = answer;
    pages.clear();
    let at = 0;
    starts = data.sections.map((one) => {
      at += one.count;
      return at - one.count;
    });
    drawHead();
    drawOutline();
    if (!same) {
      active = 0;
      selection.reset(data.ratios.length);
    }
    count.textContent = data.ratios.length
      ? `${plural(data.ratios.length, "image")}${order === "date" && !data.taken ? ", by the date of the file" : ""}`
      : state.f.length
        ? "No image matches these filters."
        : "There are no images here yet.";
    grid.show(data.ratios, data.sections, rowHeight());
    if (allSoon) selection.setRange(0, data.ratios.length);
    allSoon = false;
  }

  function drawHead() {
    const tab = (name, words) =>
      h("a.button", { href: urlFor({ ...state, order: name }), "aria-current": order === name ? "true" : null }, words);
    const change = (f) => navigate(urlFor({ ...readUrl(), f }), { replace: true });
    fill(
      head,
      row(
        h("span.segments", tab("date", "By date"), tab("folder", "By folder")),
        h("button.outline-button", { onclick: () => outline.classList.toggle("open") }, "Outline"),
        h("button", { id: "filters", onclick: () => openFilters(readUrl(), change) }, icon("filter"), "Filter"),
        chips(state.f, change),
      ),
    );
  }

  /** Links to the sections, under years or parent folders. */
  function drawOutline() {
    let before = "";
    const entries = data.sections.map(({ name, count: size }, section) => {
      const folder = order === "folder";
      const group = folder ? name.split("/").slice(0, -1).join("/") : name.slice(0, 4);
      const words = folder ? name.split("/").at(-1) || "top folder" : sectionName(order, name).replace(/ \d{4}$/, "");
      const begins = group && group !== before;
      before = group;
      const go = (event) => {
        event.preventDefault();
        outline.classList.remove("open");
        grid.goTo(section);
      };
      return [
        begins ? h("li.year", h("bdi", group)) : null,
        h(
          "li",
          h(
            "a",
            { href: `#tile-${starts[section]}`, "data-section": section, title: name, onclick: go },
            h("bdi", words),
            h("small", formatNumber(size)),
          ),
        ),
      ];
    });
    fill(outline, h("ul", entries));
  }

  function clear() {
    if (!selection.count) return false;
    selection.setRange(0, data.ratios.length, false);
    return true;
  }

  const placeOf = (event) => {
    const tile = event.target instanceof Element ? event.target.closest(".tile") : null;
    return tile instanceof HTMLElement ? Number(tile.dataset.place) : -1;
  };
  const search = (place) => {
    const one = item(place);
    if (one) navigate(urlFor({ like: one.id }));
  };
  function activate(place) {
    active = place;
    grid.list.setAttribute("aria-activedescendant", `tile-${place}`);
  }
  grid.list.addEventListener("click", (event) => {
    const place = placeOf(event);
    if (place < 0) return;
    activate(place);
    if (event.shiftKey) selection.extend(place);
    else selection.toggle(place);
  });
  grid.list.addEventListener("mousedown", (event) => event.shiftKey && event.preventDefault()); // no marked text
  grid.list.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.key !== "a") return;
    event.preventDefault();
    selection.setRange(0, data.ratios.length);
  });
  grid.list.addEventListener("dblclick", (event) => placeOf(event) >= 0 && search(placeOf(event)));

  /** @param {KeyboardEvent} event */
  function handleKey(event) {
    const last = data.ratios.length - 1;
    if (event.key === "a") selection.setRange(0, last + 1);
    else if (event.key === "t" && selection.count) bar.tag();
    else if ([grid.list, document.body].includes(document.activeElement)) return handleMove(event, last);
    else return false;
    return true;
  }

  /** Move between images. @param {KeyboardEvent} event @param {number} last */
  function handleMove(event, last) {
    const goal = {
      ArrowRight: () => active + 1,
      ArrowLeft: () => active - 1,
      ArrowDown: () => grid.vertical(active, 1),
      ArrowUp: () => grid.vertical(active, -1),
      Home: () => 0,
      End: () => last,
    }[event.key]?.();
    if (goal !== undefined && last >= 0) {
      if (document.activeElement === document.body) grid.list.focus({ preventScroll: true });
      activate(Math.min(Math.max(goal, 0), last));
      grid.reveal(active);
      if (event.shiftKey) selection.extend(active);
      else {
        selection.begin(active);
        grid.refresh();
      }
    } else if (event.key === " ") selection.toggle(active);
    else if (event.key === "Enter") search(active);
    else return false;
    return true;
  }

  const stateOf = ({ index }) => `${index.images} ${index.updated}`;
  let indexed = stateOf(getState("info"));
  const stop = subscribe("info", (info) => {
    if (indexed === stateOf(info)) return;
    indexed = stateOf(info);
    load(true).catch(api.messageOf);
  });
  const resized = () => grid.resize(rowHeight());
  addEventListener("resize", resized);

  return {
    node,
    key: handleKey,
    clear,
    async show(next) {
      const same = data.version && String(next.f) === String(state.f) && (next.order || "date") === order;
      state = next;
      order = next.order === "folder" ? "folder" : "date";
      if (same && !allSoon) return;
      abort.abort();
      abort = new AbortController();
      try {
        await load(false);
      } catch (error) {
        if (error instanceof DOMException && error.name === "AbortError") return;
        api.messageOf(error);
        fill(
          count,
          errorBanner(error, () => view?.show(readUrl())),
        );
      }
    },
    close() {
      clearTimeout(needTimer);
      abort.abort();
      stop();
      grid.close();
      removeEventListener("resize", resized);
    },
  };
}
