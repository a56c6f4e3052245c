// A grid of any number of images in justified rows: only what is in view is in the document.

import { h } from "../dom.js";

const GAP = 4;
const HEAD = 48; // height of a section's heading
const MARGIN = 700; // pixels above and below the window that are drawn too

/**
 * @typedef {{top: number, height: number, start: number, stop: number}} Row
 * @typedef {{rows: Row[], heads: {top: number, section: number}[], height: number, tops: number[]}} Layout
 */

/**
 * Place images in rows of equal height, section by section.
 * @param {number[]} ratios width by height, times 100
 * @param {{name: string, count: number}[]} sections
 * @param {number} width @param {number} target height of a row
 * @returns {Layout}
 */
export function layoutRows(ratios, sections, width, target) {
  const rows = [];
  const heads = [];
  let [top, at] = [0, 0];
  for (const [section, { count }] of sections.entries()) {
    heads.push({ top, section });
    top += HEAD;
    const end = at + count;
    while (at < end) {
      let [stop, sum] = [at, 0];
      const room = () => width - GAP * (stop - at - 1);
      while (stop < end && (sum * target) / 100 < room()) sum += ratios[stop++];
      const height = Math.min((100 * room()) / sum, (sum * target) / 100 < room() ? target : Infinity);
      rows.push({ top, height, start: at, stop });
      top += height + GAP;
      at = stop;
    }
    top += 16;
  }
  return { rows, heads, height: top, tops: rows.map((row) => row.top) };
}

/** The last place in a sorted list whose value is at most `value`. */
export function findLast(sorted, value) {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return Math.max(low - 1, 0);
}

/**
 * @param {{label: string, heading: (section: number) => any, fill: (tile: any, place: number) => void,
 *          need: (start: number, stop: number) => void}} options `fill` draws an image, `need` loads those in view
 */
export function tileGrid({ label, heading, fill, need }) {
  const list = h("div.tiles", {
    role: "listbox",
    tabindex: 0,
    "aria-label": label,
    "aria-multiselectable": "true",
  });
  const headings = h("div");
  const node = h("div.tile-grid", headings, list);
  /** @type {Map<number, any>} */
  const shown = new Map();
  /** @type {Map<number, any>} */
  const shownHeads = new Map();
  let layout = layoutRows([], [], 1, 1);
  let request = 0;

  const rowOf = (place) => findLast(startsOf(layout), place);

  function draw() {
    request = 0;
    if (!node.isConnected) return;
    const origin = node.getBoundingClientRect().top;
    const [from, to] = [-origin - MARGIN, -origin + innerHeight + MARGIN];
    const first = findLast(layout.tops, from);
    const visible = new Set();
    let last = first;
    for (let r = first; r < layout.rows.length && layout.rows[r].top < to; r++) {
      const row = layout.rows[r];
      let x = 0;
      for (let place = row.start; place < row.stop; place++) {
        const width = (row.height * ratios[place]) / 100;
        visible.add(place);
        drawTile(place, x, row.top, width, row.height);
        x += width + GAP;
      }
      last = r;
    }
    for (const [place, tile] of shown)
      if (!visible.has(place)) {
        tile.remove();
        shown.delete(place);
      }
    for (const { top, section } of layout.heads) {
      const near = top > from && top < to;
      if (near && !shownHeads.has(section)) {
        const head = h("div.tile-head", { "--y": `${top}px` }, heading(section));
        shownHeads.set(section, head);
        headings.append(head);
      } else if (!near && shownHeads.has(section)) {
        shownHeads.get(section).remove();
        shownHeads.delete(section);
      }
    }
    if (layout.rows.length) need(layout.rows[first].start, layout.rows[last].stop);
  }

  function drawTile(place, x, y, width, height) {
    let tile = shown.get(place);
    if (!tile) {
      tile = h("div.tile", {
        role: "option",
        id: `tile-${place}`,
        "data-place": place,
        "aria-selected": "false",
        "aria-setsize": ratios.length,
        "aria-posinset": place + 1,
      });
      shown.set(place, tile);
      fill(tile, place);
      list.append(tile);
    }
    for (const [name, value] of Object.entries({ "--x": x, "--y": y, "--w": width, "--h": height }))
      tile.style.setProperty(name, `${value}px`);
  }

  const redraw = () => {
    if (!request) request = requestAnimationFrame(draw);
  };
  let ratios = [];
  let sections = [];
  let target = 160;
  let width = 0;
  function arrange() {
    layout = layoutRows(ratios, sections, Math.max(width, 64), target);
    node.style.setProperty("--h", `${layout.height}px`);
    for (const head of shownHeads.values()) head.remove();
    shownHeads.clear();
    redraw();
  }
  const watch = new ResizeObserver(([entry]) => {
    if (entry.contentRect.width === width) return;
    width = entry.contentRect.width;
    arrange();
  });
  watch.observe(node);
  addEventListener("scroll", redraw, { passive: true });

  return {
    node,
    list,
    /** Show other images. @param {number[]} newRatios @param {{name: string, count: number}[]} newSections */
    show(newRatios, newSections, height) {
      [ratios, sections, target] = [newRatios, newSections, height];
      for (const tile of shown.values()) tile.remove();
      shown.clear();
      arrange();
    },
    /** Change the height of the rows. @param {number} height */
    resize(height) {
      if (height === target) return;
      target = height;
      arrange();
    },
    /** Draw the images in view again. */
    refresh: () => {
      for (const [place, tile] of shown) fill(tile, place);
    },
    /** Scroll to a section. @param {number} section */
    goTo(section) {
      const head = layout.heads[section];
      if (head) scrollTo(0, scrollY + node.getBoundingClientRect().top + head.top - 56);
    },
    /** The section at the top of the window. */
    current: () =>
      findLast(
        layout.heads.map((head) => head.top),
        -node.getBoundingClientRect().top + 80,
      ),
    /** Scroll an image into view. @param {number} place */
    reveal(place) {
      const row = layout.rows[rowOf(place)];
      if (!row) return;
      const top = node.getBoundingClientRect().top + row.top;
      if (top < 110) scrollTo(0, scrollY + top - 110);
      else if (top + row.height > innerHeight - 120) scrollTo(0, scrollY + top + row.height - innerHeight + 120);
      draw();
    },
    /** The image above or below another. @param {number} place @param {number} by rows */
    vertical(place, by) {
      const from = layout.rows[rowOf(place)];
      const to = layout.rows[rowOf(place) + by];
      if (!to) return place;
      const center = (row, at) => {
        let x = 0;
        for (let k = row.start; k < at; k++) x += row.height * ratios[k];
        return x + (row.height * ratios[at]) / 2;
      };
      const goal = center(from, place);
      let best = to.start;
      for (let at = to.start; at < to.stop; at++)
        if (Math.abs(center(to, at) - goal) < Math.abs(center(to, best) - goal)) best = at;
      return best;
    },
    close() {
      watch.disconnect();
      removeEventListener("scroll", redraw);
    },
  };
}

const starts = new WeakMap();
function startsOf(layout) {
  if (!starts.has(layout))
    starts.set(
      layout,
      layout.rows.map((row) => row.start),
    );
  return starts.get(layout);
}
