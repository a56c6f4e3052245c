// The map: a cloud of all pictures to wander through, with the names of its places.

import * as api from "../api.js";
import { count, fill, h, icon, readable, text, toast } from "../dom.js";
import { NONE, COLOURS, parse, toScreen } from "../map/buffer.js";
import { area, hands } from "../map/hands.js";
import { places } from "../map/labels.js";
import { inside, near, pick, sorted } from "../map/pick.js";
import { stage as makeStage } from "../map/stage.js";
import * as facets from "../parts/facets.js";
import { title } from "../parts/score.js";
import { address, asks, go, note, question, read } from "../router.js";
import { calm } from "../store.js";

/** @type {any} */
let view = null;

export function leave() {
  view?.end();
  view = null;
}

/** The picture under the card, for the keys. */
export const current = () => view?.card?.id ?? "";
export const fit = () => view?.fit();
export const filters = () => view?.filters();

/** @param {HTMLElement} main @param {any} info @param {import("../router.js").State} state */
export async function render(main, info, state) {
  document.title = "Map · lookalike";
  if (view && main.contains(view.node)) return view.follow(state);
  leave();
  const words = h("p", { class: "empty", role: "status" }, "Fetching the map…");
  fill(main, h("div", { class: "screen" }, h("h1", { class: "unseen" }, "Map"), words));
  let open = true;
  const stop = api.poll("/api/v1/map", async (facts) => {
    if (facts.gen) {
      if (view?.gen === facts.gen) return view.tell(facts);
      const cloud = parse(await api.bytes(`/api/v1/map/${facts.gen}.bin`));
      if (!open) return;
      if (view?.change) view.change(cloud, facts);
      else view = make(main, info, read(location), cloud, facts, () => { open = false; stop(); });
      return;
    }
    words.textContent = drawing(facts);
  }, (facts) => (facts.state === "ready" ? 15000 : 700));
  view ??= { node: words, end: () => { open = false; stop(); }, follow: () => {} };
}

/** @param {any} facts */
function drawing(facts) {
  const job = facts.job;
  if (!job) return "There is no map of this index yet.";
  if (job.state === "failed") return job.sentence;
  const left = job.seconds_left;
  return left ? `Drawing the map: about ${left} s.` : "Drawing the map…";
}

/** @param {HTMLElement} main @param {any} info @param {import("../router.js").State} state @param {any} cloud @param {any} facts @param {() => void} stop */
function make(main, info, state, cloud, facts, stop) {
  const stage = makeStage(cloud, () => rested());
  const { eye, marks } = stage;
  let index = sorted(cloud);
  let names = facts.labels;
  let column = "label";
  let timer = 0;
  let lassoing = false;
  /** @type {any} */
  let card = null;
  const labels = h("div", { class: "places" });
  const list = h("ol", { class: "unseen nearest", "aria-label": "Nearest to the middle" });
  const hold = h("div", { class: "card-place" });
  const foot = h("p", { class: "map-foot" });
  const legend = h("div", { class: "legend" });
  const colour = h("select", { "aria-label": "Colour by", onchange: (/** @type {any} */ e) => recolour(e.target.value) },
    facts.columns.map((/** @type {string} */ name) => h("option", { value: name, selected: name === "label" }, `Colour: ${name}`)));
  const button = (/** @type {string} */ symbol, /** @type {string} */ name, /** @type {() => void} */ act) =>
    h("button", { type: "button", class: "icon", title: name, "aria-label": name, onclick: act }, icon(symbol));
  const draw = h("button", { type: "button", class: "icon", title: "Draw round pictures (Shift and drag)", "aria-label": "Draw round pictures", "aria-pressed": "false",
    onclick: () => { lassoing = !lassoing; draw.setAttribute("aria-pressed", String(lassoing)); } }, icon("lasso"));
  const bar = h("div", { class: "map-bar" }, facts.columns.length ? colour : null,
    h("button", { type: "button", id: "filters", onclick: () => filter() }, icon("filter"), h("span", { class: "wide" }, "Filter")),
    button("plus", "Nearer (+)", () => stage.zoom(1.6)), button("minus", "Further (−)", () => stage.zoom(1 / 1.6)),
    button("fit", "Show all (0)", () => fitAll()), draw);
  const chips = h("div", { class: "row map-chips" });
  stage.node.append(labels, list);
  const node = h("div", { class: "mapview" }, h("h1", { class: "unseen" }, "Map of all pictures"), stage.node, bar, chips, legend, hold, foot);
  fill(main, node);

  const filter = () => facets.open(facts.columns, read(location).f, (f) => go(address({ ...read(location), f }), { replace: true }));
  const fitAll = () => glide(0.5, 0.5, 0.98);
  const key = () => `${eye.x.toFixed(4)},${eye.y.toFixed(4)},${eye.zoom.toFixed(2)}`;

  /** Fly there, or jump for those who asked for calm. @param {number} x @param {number} y @param {number} zoom */
  function glide(x, y, zoom) {
    if (calm()) return stage.look(x, y, zoom);
    const from = { ...eye };
    const began = performance.now();
    const step = () => {
      const t = Math.min((performance.now() - began) / 300, 1);
      const ease = 1 - (1 - t) ** 3;
      stage.look(from.x + (x - from.x) * ease, from.y + (y - from.y) * ease, from.zoom * (zoom / from.zoom) ** ease);
      if (t < 1 && node.isConnected) requestAnimationFrame(step);
    };
    step();
  }

  function rested() {
    if (!node.isConnected) return;
    note(address({ ...read(location), at: key() }));
    const found = places(stage.cloud, eye);
    labels.classList.remove("moving");
    fill(labels, found.map((place) => {
      const name = place.code === NONE ? "" : readable(names[place.code] ?? "");
      const words = name ? [h("b", null, h("bdi", null, name)), ` ${Math.round(100 * place.share)} %`] : [face(place.middle)];
      const label = `${name || "Place"}: ${count(place.count, "picture")}${name ? `, ${Math.round(100 * place.share)} % of them` : ""}`;
      return h("button", { type: "button", class: "place", "--x": `${place.px}px`, "--y": `${place.py}px`, "aria-label": label,
        onclick: () => glide(place.x, place.y, eye.zoom * 2.5) }, words);
    }));
    const twenty = near(stage.cloud, index, eye, eye.width / 2, eye.height / 2, Math.max(eye.width, eye.height) / 2).slice(0, 20);
    fill(list, twenty.map((i, k) => h("li", null, h("button", { type: "button", onfocus: () => ring(i), onclick: () => showCard(i) }, `Picture ${k + 1} near the middle`))));
  }

  /** @param {number} i */
  function face(i) {
    const image = h("img", { alt: "", width: 40, height: 40 });
    if (i >= 0) api.get(`/api/v1/map/${stage.cloud.gen}/point/${i}`).then((item) => image.setAttribute("src", api.thumb(item.thumb, 96)));
    return image;
  }

  let hits = [];
  /** @param {number} i */
  function ring(i) {
    marks.rings = [...hits, ...(i < 0 ? [] : [{ x: stage.cloud.x[i] / 65535, y: stage.cloud.y[i] / 65535, kind: "here" }])];
    stage.redraw();
  }

  /** @param {number} i */
  async function showCard(i) {
    const item = await api.get(`/api/v1/map/${stage.cloud.gen}/point/${i}`);
    if (!node.isConnected) return;
    card = item;
    ring(i);
    const [px, py] = toScreen(eye, stage.cloud.x[i] / 65535, stage.cloud.y[i] / 65535);
    const close = h("button", { type: "button", class: "quiet icon", "aria-label": "Close", onclick: hideCard }, icon("close"));
    fill(hold, h("div", { class: "card", role: "group", "aria-label": title(item), "--x": `${Math.min(Math.max(px, 150), eye.width - 150)}px`,
      "--y": `${py}px`, "data-above": py > eye.height * 0.55, onpointerenter: () => clearTimeout(timer) },
      h("a", { href: address({ like: item.id }), "data-link": true }, h("img", { src: api.thumb(item.thumb, 256), alt: title(item), width: 240 })),
      h("div", { class: "row" }, h("strong", null, h("bdi", null, title(item))), h("span", { class: "grow" }), close),
      h("small", null, h("bdi", null, text(item.columns.path))),
      h("div", { class: "row" }, h("button", { type: "button", class: "main", onclick: () => go(address({ like: item.id })) }, icon("like"), "More like this"))));
  }
  function hideCard() {
    card = null;
    fill(hold);
    ring(-1);
  }

  const after = (/** @type {number} */ ms, /** @type {() => void} */ act) => { clearTimeout(timer); timer = setTimeout(act, ms); };
  hands(stage, {
    hover(px, py) {
      const i = pick(stage.cloud, index, eye, px, py);
      if (i === view?.over) return;
      if (view) view.over = i;
      ring(i);
      if (i >= 0) after(125, () => showCard(i));
      else if (card) after(250, hideCard);
      else clearTimeout(timer);
    },
    leave: () => { if (view) view.over = -1; after(250, hideCard); },
    click(px, py) {
      const i = pick(stage.cloud, index, eye, px, py, 24);
      if (i >= 0) showCard(i);
      else hideCard();
    },
    lasso(line) {
      lassoing = false;
      draw.setAttribute("aria-pressed", "false");
      const number = inside(stage.cloud, line);
      const f = [...read(location).f.filter((x) => !x.startsWith("area:")), area(stage.cloud.gen, line)];
      const drop = () => { marks.line = []; fill(hold); stage.redraw(); };
      fill(hold, h("div", { class: "banner floating", role: "status" }, h("strong", null, count(number, "picture")),
        h("button", { type: "button", class: "main", disabled: !number, onclick: () => go(address({ ...read(location), screen: "search", at: "", f })) }, "Search in these"),
        h("button", { type: "button", disabled: !number, onclick: () => go(address({ screen: "duplicates", f })) }, "Duplicates among these"),
        h("button", { type: "button", onclick: drop }, "Cancel")));
    },
    lassoing: () => lassoing,
    fit: fitAll,
    moving: () => { labels.classList.add("moving"); clearTimeout(timer); if (card) hideCard(); },
  });
  /** @param {string} next */
  async function recolour(next) {
    column = next;
    const base = `/api/v1/map/${stage.cloud.gen}/codes/${encodeURIComponent(next)}`;
    const [{ names: found }, data] = await Promise.all([api.get(base), api.bytes(`${base}.bin`)]);
    names = found;
    stage.show({ ...stage.cloud, codes: new Uint16Array(data) });
    rested();
    explain();
  }

  function explain() {
    const used = names.slice(0, 11);
    fill(legend, used.length > 1 ? used.map((/** @type {string} */ name, /** @type {number} */ k) => h("span", null, h("i", { "--c": COLOURS[k] }), h("bdi", null, readable(name)))) : [],
      names.length > 11 ? h("span", null, h("i", { "--c": COLOURS[11] }), `${names.length - 11} others`) : null);
  }

  /** Filters dim what they leave out; the question and its hits are rings. @param {import("../router.js").State} now */
  async function follow(now) {
    fill(chips, facets.chips(now.f, (f) => go(address({ ...read(location), f }), { replace: true })));
    const query = new URLSearchParams(now.f.map((f) => ["f", f]));
    const mask = now.f.length ? new Uint8Array(await api.bytes(`/api/v1/map/${stage.cloud.gen}/mask?${query}`)) : null;
    stage.show({ ...stage.cloud, mask });
    hits = [];
    if (asks(now)) {
      const answer = await api.get(question({ ...now, f: [] }, 20));
      const ids = [...(now.like ? [now.like] : []), ...answer.hits.map((/** @type {any} */ hit) => hit.id)].slice(0, 20);
      const where = await api.get(`/api/v1/map/${stage.cloud.gen}/where?${new URLSearchParams(ids.map((id) => ["id", id]))}`);
      hits = where.points.map((/** @type {any} */ p) => ({ x: p.x, y: p.y, kind: p.id === now.like ? "query" : "hit" }));
    }
    ring(-1);
  }

  /** @param {any} now */
  function tell(now) {
    const kept = Math.round(100 * now.kept[1]);
    const sketch = now.method === "t-SNE" ? `near neighbours kept ${kept} %` : `A rough sketch (${kept} % of near neighbours kept). ${drawing(now)}`;
    fill(foot, `${count(now.n, "picture")} · ${sketch}`);
    foot.title = `Of each picture's 10 nearest, ${Math.round(100 * now.kept[0])} % are among its 10 nearest here and ${kept} % among its 50.`;
  }

  /** The map was drawn anew: points go to their new places. @param {any} next @param {any} now */
  function change(next, now) {
    index = sorted(next);
    names = now.labels;
    made.gen = now.gen;
    hideCard();
    stage.show(next);
    tell(now);
    rested();
    if (column !== "label") recolour(column);
    toast("The map has been brought up to date.");
  }

  const made = { node, gen: facts.gen, follow, tell, change, fit: fitAll, filters: filter, over: -1, get card() { return card; },
    close: () => (card || hold.childElementCount ? (hideCard(), (marks.line = []), stage.redraw(), true) : false),
    end: () => { stop(); stage.close(); clearTimeout(timer); } };
  const at = state.at.split(",").map(Number);
  if (at.length === 3 && at.every(Number.isFinite)) stage.look(at[0], at[1], at[2]);
  else stage.look(0.5, 0.5, 0.98);
  tell(facts);
  explain();
  follow(state);
  stage.upgrade();
  return made;
}

/** Close what is open; whether there was something. */
export const escape = () => Boolean(view?.close?.());
