// What can be done with the map's points: names of places, cards, filters, colors, and drawing round them.

import * as api from "../api.js";
import { count, fill, h, icon, press, readable, row, text, toast } from "../dom.js";
import * as facets from "../parts/facets.js";
import { title } from "../parts/score.js";
import { address, asks, go, note, question, read } from "../router.js";
import { calm } from "../store.js";
import { drawing } from "../views/map.js";
import { COLORS, NONE, toScreen } from "./buffer.js";
import { area, hands } from "./hands.js";
import { places } from "./labels.js";
import { inside, middle, pick, sorted } from "./pick.js";

/** @param {any} stop of the questions for the map's state; `stop.again` asks at once */
export function scene(node, stage, info, facts, stop) {
  const { eye, marks } = stage;
  let index = null;
  const cells = () => (index ??= sorted(stage.cloud));
  let names = facts.labels;
  let column = "label";
  let timer = 0;
  let lassoing = false;
  let card = null;
  let over = -1;
  const labels = h("div.places");
  const list = h("ol.unseen.nearest", { "aria-label": "Nearest to the middle" });
  const hold = h("div.card-place");
  const foot = h("p.map-foot");
  const legend = h("div.legend");
  const color = h("select", { "aria-label": "Color by", onchange: (e) => recolor(e.target.value) },
    facts.columns.map((name) => h("option", { value: name, selected: name === "label" }, `Color: ${name}`)));
  const lasso = (on) => draw.setAttribute("aria-pressed", (lassoing = on));
  const draw = press("lasso", "Draw round images (Shift and drag)", () => lasso(!lassoing), { "aria-pressed": "false" });
  const bar = h("div.map-bar", facts.columns.length ? color : null,
    h("button", { id: "filters", onclick: () => facets.open(read(), filtered) }, icon("filter"), h("span.wide", "Filter")),
    press("plus", "Nearer (+)", () => stage.zoom(1.6)), press("minus", "Further (−)", () => stage.zoom(1 / 1.6)), press("fit", "Show all (0)", () => fitAll()), draw);
  const chips = h("div.row.map-chips");
  stage.node.append(labels, list);
  node.append(bar, chips, legend, hold, foot);

  const here = (other) => address({ ...read(), ...other });
  const filtered = (f) => go(here({ f }), { replace: true });
  const of = (rest) => `map/${stage.cloud.gen}/${rest}`;
  const place = (i) => [stage.cloud.x[i] / 65535, stage.cloud.y[i] / 65535];
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
    note(here({ at: where(eye.x, eye.y, eye.zoom) }));
    // Over small images a name stands once, above them.
    const side = stage.side;
    const found = places(stage.cloud, eye).filter((place, k, all) => !side || all.findIndex((one) => one.code === place.code) === k);
    labels.classList.remove("moving");
    const focused = labels.contains(document.activeElement);
    fill(labels, found.map((place) => {
      const name = place.code === NONE ? "" : readable(names[place.code] ?? "");
      const words = name ? [h("b", h("bdi", name)), ` ${Math.round(100 * place.share)} %`] : [face(place.middle)];
      const label = `${name || "Place"}: ${count(place.count, "image")}${name ? `, ${Math.round(100 * place.share)} % of them` : ""}`;
      const nearer = [place.x, place.y, eye.zoom * 2.5];
      return h("a", { href: here({ at: where(...nearer) }), class: "place", "--x": `${place.px}px`, "--y": `${side ? Math.max(place.edge - side, 16) : place.py}px`, "aria-label": label,
        onclick: (event) => { if (!event.ctrlKey && !event.metaKey) { event.preventDefault(); glide(...nearer); } } }, words);
    }));
    if (focused) stage.node.focus({ preventScroll: true }); // the name that was chosen is gone
    setTimeout(nearest);
  }

  function nearest() {
    if (!node.isConnected) return;
    fill(list, middle(stage.cloud, cells(), eye, 20).map((i, k) => h("li", h("button", { onfocus: () => ring(i), onclick: () => showCard(i) }, `Image ${k + 1} near the middle`))));
  }

  function face(i) {
    const image = h("img", { alt: "", width: 40, height: 40 });
    if (i >= 0) api.get(of(`point/${i}`)).then((item) => image.setAttribute("src", api.thumb(item.thumb, 96)), api.said);
    return image;
  }

  let hits = [];
  function ring(i) {
    const [x, y] = place(i);
    marks.rings = i < 0 ? hits : [...hits, { x, y, kind: "here" }];
    stage.redraw();
  }

  /** What could not be had, where the card would be; a map that was drawn anew meanwhile is fetched at once. */
  function refused(error) {
    const sentence = api.said(error);
    if (!node.isConnected) return;
    hideCard();
    fill(hold, h("div.banner.floating", { role: "alert" }, sentence));
    if (error.status === 410) stop.again();
  }

  async function showCard(i) {
    const item = await api.get(of(`point/${i}`)).catch(refused);
    if (!item || !node.isConnected) return;
    card = item;
    ring(i);
    const [px, py] = toScreen(eye, ...place(i));
    const close = press("close", "Close", hideCard, { class: "quiet icon" });
    fill(hold, h("div.card", { role: "group", "aria-label": title(item), "--x": `${Math.min(Math.max(px, 150), eye.width - 150)}px`,
      "--y": `${py}px`, "data-above": py > eye.height * 0.55, onpointerenter: () => clearTimeout(timer) },
      h("a", { href: address({ like: item.id }) }, h("img", { src: api.thumb(item.thumb, 256), alt: title(item), width: 240 })),
      row(h("strong", h("bdi", title(item))), h("span.grow"), close),
      h("small", h("bdi", text(item.columns.path))),
      row(h("button.main", { onclick: () => go(address({ like: item.id })) }, icon("like"), "More like this"))));
  }
  function hideCard() {
    card = null;
    fill(hold);
    ring(-1);
  }

  const after = (ms, act) => { clearTimeout(timer); timer = setTimeout(act, ms); };
  const key = hands(stage, {
    hover(px, py) {
      const i = pick(stage.cloud, cells(), eye, px, py);
      if (i === over) return;
      over = i;
      ring(i);
      if (i >= 0) after(125, () => showCard(i));
      else if (card) after(250, hideCard);
      else clearTimeout(timer);
    },
    leave: () => { over = -1; after(250, hideCard); },
    click(px, py) {
      const i = pick(stage.cloud, cells(), eye, px, py, 24);
      i < 0 ? hideCard() : showCard(i);
    },
    lasso(line) {
      lasso(false);
      const number = inside(stage.cloud, line);
      const f = [...read().f.filter((x) => !facets.parts(x).drawn), area(stage.cloud.gen, line)];
      const drop = () => { marks.line = []; fill(hold); stage.redraw(); };
      fill(hold, h("div.banner.floating", { role: "status" }, h("strong", count(number, "image")),
        h("button.main", { disabled: !number, onclick: () => go(here({ screen: "search", at: "", f })) }, "Search in these"),
        h("button", { disabled: !number, onclick: () => go(address({ screen: "duplicates", f })) }, "Duplicates among these"),
        h("button", { onclick: drop }, "Cancel")));
    },
    lassoing: () => lassoing,
    fit: fitAll,
    moving: () => { labels.classList.add("moving"); clearTimeout(timer); if (card) hideCard(); },
  });
  async function recolor(next) {
    column = next;
    const base = of(`codes/${encodeURIComponent(next)}`);
    const got = await Promise.all([api.get(base), api.bytes(`${base}.bin`)]).catch(refused);
    if (!got) return;
    names = got[0].names;
    stage.show({ ...stage.cloud, codes: new Uint16Array(got[1]) });
    rested();
    explain();
  }

  function explain() {
    const used = names.slice(0, 11);
    fill(legend, used.length > 1 ? used.map((name, k) => h("span", h("i", { "--c": COLORS[k] }), h("bdi", readable(name)))) : [],
      names.length > 11 ? h("span", h("i", { "--c": COLORS[11] }), `${names.length - 11} others`) : null);
  }

  /** Filters dim what they leave out; the question and its hits are rings. */
  async function follow(now) {
    fill(chips, facets.chips(now.f, filtered));
    const query = new URLSearchParams(now.f.map((f) => ["f", f]));
    const bits = now.f.length && (await api.bytes(of(`mask?${query}`)).catch(refused));
    const mask = bits ? new Uint8Array(bits) : null;
    if (mask || stage.cloud.mask) stage.show({ ...stage.cloud, mask });
    hits = [];
    if (asks(now)) {
      const answer = await api.get(question({ ...now, f: [] }, 20));
      const ids = [now.like, ...answer.hits.map((hit) => hit.id)].filter(Boolean).slice(0, 20);
      const { points } = await api.get(of(`where?${new URLSearchParams(ids.map((id) => ["id", id]))}`));
      hits = points.map((p) => ({ x: p.x, y: p.y, kind: p.id === now.like ? "query" : "hit" })).reverse();
      const last = hits.at(-1);
      if (last?.kind === "query" && !now.at) glide(last.x, last.y, 3);
    }
    if (hits.length || marks.rings.length) ring(-1);
  }

  function tell(now) {
    const kept = Math.round(100 * now.kept[1]);
    const busy = now.job?.state === "running";
    const words = now.method === "t-SNE" ? `near neighbors kept ${kept} %` : `A rough sketch (${kept} % of near neighbors kept).`;
    const redraw = h("button.linkish", { onclick: () => api.send("map/draw").then(stop.again).catch(refused) }, "Draw again");
    fill(foot, `${count(now.n, "image")} · ${words}`, busy ? ` ${drawing(now)}` : info.rights === "write" ? [" ", redraw] : null);
    foot.title = `Of each image's 10 nearest, ${Math.round(100 * now.kept[0])} % are among its 10 nearest here and ${kept} % among its 50.`;
  }

  /** The map was drawn anew: points go to their new places. */
  async function change(next, now) {
    const known = now.before === stage.cloud.gen && !calm();
    const was = known ? new Int32Array(await api.bytes(`map/${now.gen}/from/${now.before}.bin`)) : null;
    index = sorted(next);
    names = now.labels;
    made.gen = now.gen;
    hideCard();
    tell(now);
    explain();
    if (was) await stage.glide(next, was);
    else stage.show(next);
    await follow(read());
    rested();
    if (column !== "label") recolor(column);
    toast("The map has been brought up to date.");
  }

  const made = { node, gen: facts.gen, follow, tell, change, key, get card() { return card; },
    close: () => (card || hold.childElementCount ? (hideCard(), (marks.line = []), stage.redraw(), true) : false),
    end: () => { stop(); stage.close(); clearTimeout(timer); } };
  tell(facts);
  explain();
  stage.whenRested(rested);
  follow(read()).catch(refused);
  setTimeout(stage.check_format, 1000); // a trial that no first look waits for
  return made;
}
