// The map: a cloud of all pictures to wander through, with the names of its places.

import * as api from "../api.js";
import { count, fill, h, icon, press, readable, row, text, toast } from "../dom.js";
import { NONE, COLOURS, parse, toScreen } from "../map/buffer.js";
import { area, hands } from "../map/hands.js";
import { places } from "../map/labels.js";
import { inside, near, pick, sorted } from "../map/pick.js";
import { stage as makeStage } from "../map/stage.js";
import * as facets from "../parts/facets.js";
import { title } from "../parts/score.js";
import { address, asks, go, note, question, read } from "../router.js";
import { calm } from "../store.js";


let view = null;

export function leave() {
  view?.end();
  view = null;
}

/** The picture under the card, for the keys. */
export const current = () => view?.card?.id ?? "";
/** @param {KeyboardEvent} event */
export const key = (event) => Boolean(view?.key?.(event));

export async function render(main, info, state) {
  document.title = "Map · lookalike";
  if (view && main.contains(view.node)) return view.follow(state);
  leave();
  const words = h("p", { class: "empty", role: "status" }, "Fetching the map…");
  fill(main, h("div", { class: "screen" }, h("h1", { class: "unseen" }, "Map"), words));
  let open = true;
  const end = () => { open = false; stop(); };
  const stop = api.poll("/api/v1/map", async (facts) => {
    if (facts.gen) {
      if (view?.gen === facts.gen) return view.tell(facts);
      const cloud = parse(await api.bytes(`/api/v1/map/${facts.gen}.bin`));
      if (!open) return;
      if (view?.change) await view.change(cloud, facts);
      else view = make(main, info, read(location), cloud, facts, end, stop.again);
      return;
    }
    words.textContent = drawing(facts);
  }, (facts) => (facts.state === "ready" && facts.job?.state !== "running" ? 15000 : 700));
  view ??= { node: words, end, follow: () => {} };
}

function drawing(facts) {
  const job = facts.job;
  if (!job) return "There is no map of this index yet.";
  if (job.state === "failed") return job.sentence;
  const left = job.seconds_left;
  return left ? `Drawing the map: about ${left} s.` : "Drawing the map…";
}

function make(main, info, state, cloud, facts, stop, again) {
  const stage = makeStage(cloud, () => rested());
  const { eye, marks } = stage;
  let index = sorted(cloud);
  let names = facts.labels;
  let column = "label";
  let timer = 0;
  let lassoing = false;
  let card = null;
  const labels = h("div", { class: "places" });
  const list = h("ol", { class: "unseen nearest", "aria-label": "Nearest to the middle" });
  const hold = h("div", { class: "card-place" });
  const foot = h("p", { class: "map-foot" });
  const legend = h("div", { class: "legend" });
  const colour = h("select", { "aria-label": "Colour by", onchange: (e) => recolour(e.target.value) },
    facts.columns.map((name) => h("option", { value: name, selected: name === "label" }, `Colour: ${name}`)));
  const draw = press("lasso", "Draw round pictures (Shift and drag)", () => { lassoing = !lassoing; draw.setAttribute("aria-pressed", String(lassoing)); }, { "aria-pressed": "false" });
  const bar = h("div", { class: "map-bar" }, facts.columns.length ? colour : null,
    h("button", { id: "filters", onclick: () => filter() }, icon("filter"), h("span", { class: "wide" }, "Filter")),
    press("plus", "Nearer (+)", () => stage.zoom(1.6)), press("minus", "Further (−)", () => stage.zoom(1 / 1.6)), press("fit", "Show all (0)", () => fitAll()), draw);
  const chips = h("div", { class: "row map-chips" });
  stage.node.append(labels, list);
  const node = h("div", { class: "mapview" }, h("h1", { class: "unseen" }, "Map of all pictures"), stage.node, bar, chips, legend, hold, foot);
  fill(main, node);

  const filter = () => facets.open(read(location), (f) => go(address({ ...read(location), f }), { replace: true }));
  const fitAll = () => glide(0.5, 0.5, 0.98);
  const where = (x, y, zoom) => `${x.toFixed(4)},${y.toFixed(4)},${zoom.toFixed(2)}`;

  /** Fly there, or jump for those who asked for calm. */
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
    note(address({ ...read(location), at: where(eye.x, eye.y, eye.zoom) }));
    // Over small pictures a name stands once, above them.
    const side = stage.side;
    const found = places(stage.cloud, eye).filter((place, k, all) => !side || all.findIndex((one) => one.code === place.code) === k);
    labels.classList.remove("moving");
    const focused = labels.contains(document.activeElement);
    fill(labels, found.map((place) => {
      const name = place.code === NONE ? "" : readable(names[place.code] ?? "");
      const words = name ? [h("b", null, h("bdi", null, name)), ` ${Math.round(100 * place.share)} %`] : [face(place.middle)];
      const label = `${name || "Place"}: ${count(place.count, "picture")}${name ? `, ${Math.round(100 * place.share)} % of them` : ""}`;
      const nearer = [place.x, place.y, eye.zoom * 2.5];
      return h("a", { href: address({ ...read(location), at: where(...nearer) }), class: "place", "--x": `${place.px}px`, "--y": `${side ? Math.max(place.edge - side, 16) : place.py}px`, "aria-label": label,
        onclick: (event) => { if (!event.ctrlKey && !event.metaKey) { event.preventDefault(); glide(...nearer); } } }, words);
    }));
    if (focused) stage.node.focus({ preventScroll: true }); // the name that was chosen is gone
    const twenty = near(stage.cloud, index, eye, eye.width / 2, eye.height / 2, Math.max(eye.width, eye.height) / 2).slice(0, 20);
    fill(list, twenty.map((i, k) => h("li", null, h("button", { onfocus: () => ring(i), onclick: () => showCard(i) }, `Picture ${k + 1} near the middle`))));
  }

  function face(i) {
    const image = h("img", { alt: "", width: 40, height: 40 });
    if (i >= 0) api.get(`/api/v1/map/${stage.cloud.gen}/point/${i}`).then((item) => image.setAttribute("src", api.thumb(item.thumb, 96)));
    return image;
  }

  let hits = [];
  function ring(i) {
    marks.rings = [...hits, ...(i < 0 ? [] : [{ x: stage.cloud.x[i] / 65535, y: stage.cloud.y[i] / 65535, kind: "here" }])];
    stage.redraw();
  }

  async function showCard(i) {
    const item = await api.get(`/api/v1/map/${stage.cloud.gen}/point/${i}`);
    if (!node.isConnected) return;
    card = item;
    ring(i);
    const [px, py] = toScreen(eye, stage.cloud.x[i] / 65535, stage.cloud.y[i] / 65535);
    const close = press("close", "Close", hideCard, { class: "quiet icon" });
    fill(hold, h("div", { class: "card", role: "group", "aria-label": title(item), "--x": `${Math.min(Math.max(px, 150), eye.width - 150)}px`,
      "--y": `${py}px`, "data-above": py > eye.height * 0.55, onpointerenter: () => clearTimeout(timer) },
      h("a", { href: address({ like: item.id }), "data-link": true }, h("img", { src: api.thumb(item.thumb, 256), alt: title(item), width: 240 })),
      row(h("strong", null, h("bdi", null, title(item))), h("span", { class: "grow" }), close),
      h("small", null, h("bdi", null, text(item.columns.path))),
      row(h("button", { class: "main", onclick: () => go(address({ like: item.id })) }, icon("like"), "More like this"))));
  }
  function hideCard() {
    card = null;
    fill(hold);
    ring(-1);
  }

  const after = (ms, act) => { clearTimeout(timer); timer = setTimeout(act, ms); };
  const key = hands(stage, {
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
        h("button", { class: "main", disabled: !number, onclick: () => go(address({ ...read(location), screen: "search", at: "", f })) }, "Search in these"),
        h("button", { disabled: !number, onclick: () => go(address({ screen: "duplicates", f })) }, "Duplicates among these"),
        h("button", { onclick: drop }, "Cancel")));
    },
    lassoing: () => lassoing,
    fit: fitAll,
    moving: () => { labels.classList.add("moving"); clearTimeout(timer); if (card) hideCard(); },
  });
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
    fill(legend, used.length > 1 ? used.map((name, k) => h("span", null, h("i", { "--c": COLOURS[k] }), h("bdi", null, readable(name)))) : [],
      names.length > 11 ? h("span", null, h("i", { "--c": COLOURS[11] }), `${names.length - 11} others`) : null);
  }

  /** A part that was drawn round on an older map. */
  function told(error) {
    if (!(error instanceof api.ApiError)) throw error;
    toast(error.message);
    return new Uint8Array(stage.cloud.n).fill(255);
  }

  /** Filters dim what they leave out; the question and its hits are rings. */
  async function follow(now) {
    fill(chips, facets.chips(now.f, (f) => go(address({ ...read(location), f }), { replace: true })));
    const query = new URLSearchParams(now.f.map((f) => ["f", f]));
    const mask = now.f.length ? new Uint8Array(await api.bytes(`/api/v1/map/${stage.cloud.gen}/mask?${query}`).catch(told)) : null;
    stage.show({ ...stage.cloud, mask });
    hits = [];
    if (asks(now)) {
      const answer = await api.get(question({ ...now, f: [] }, 20));
      const ids = [...(now.like ? [now.like] : []), ...answer.hits.map((hit) => hit.id)].slice(0, 20);
      const { points } = await api.get(`/api/v1/map/${stage.cloud.gen}/where?${new URLSearchParams(ids.map((id) => ["id", id]))}`);
      hits = points.map((p) => ({ x: p.x, y: p.y, kind: p.id === now.like ? "query" : "hit" })).reverse();
      const [query] = hits.slice(-1);
      if (query?.kind === "query" && !now.at) glide(query.x, query.y, 3);
    }
    ring(-1);
  }

  function tell(now) {
    const kept = Math.round(100 * now.kept[1]);
    const busy = now.job?.state === "running";
    const words = now.method === "t-SNE" ? `near neighbours kept ${kept} %` : `A rough sketch (${kept} % of near neighbours kept).`;
    const redraw = h("button", { class: "linkish", onclick: async () => { await api.send("/api/v1/map/draw"); again(); } }, "Draw again");
    fill(foot, `${count(now.n, "picture")} · ${words}`, busy ? ` ${drawing(now)}` : info.rights === "write" ? [" ", redraw] : null);
    foot.title = `Of each picture's 10 nearest, ${Math.round(100 * now.kept[0])} % are among its 10 nearest here and ${kept} % among its 50.`;
  }

  /** The map was drawn anew: points go to their new places. */
  async function change(next, now) {
    const known = now.before === stage.cloud.gen && !calm();
    const was = known ? new Int32Array(await api.bytes(`/api/v1/map/${now.gen}/from/${now.before}.bin`)) : null;
    index = sorted(next);
    names = now.labels;
    made.gen = now.gen;
    hideCard();
    tell(now);
    explain();
    if (was) await stage.glide(next, was);
    else stage.show(next);
    await follow(read(location));
    rested();
    if (column !== "label") recolour(column);
    toast("The map has been brought up to date.");
  }

  const made = { node, gen: facts.gen, follow, tell, change, key, over: -1, get card() { return card; },
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
