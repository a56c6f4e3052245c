// Controls of the map: place labels, image cards, filters, colors and the lasso.

import * as api from "../api.js";
import * as facets from "../components/filters.js";
import { title } from "../components/score.js";
import { fill, h, icon, iconButton, joinText, plural, readableLabel, row, toast, withErrorToast } from "../dom.js";
import { hasQuery, navigate, readUrl, replaceUrl, searchPath, urlFor } from "../router.js";
import { prefersReducedMotion } from "../store.js";
import { drawingMessage } from "../views/map.js";
import { areaFilter, attachInput } from "./input.js";
import { findPlaces } from "./labels.js";
import { buildGrid, countInside, pickPoint, pointsNearCenter } from "./picking.js";
import { COLORS, NONE, toScreen } from "./points.js";

/** @param {any} stop stops polling the map's state; `stop.again` polls at once */
export function createControls(node, canvas, info, facts, stop) {
  const { viewport, marks } = canvas;
  let index = null;
  const cells = () => {
    index ??= buildGrid(canvas.cloud);
    return index;
  };
  let names = facts.labels;
  let column = "label";
  let timer = 0;
  let lassoing = false;
  let card = null;
  let hovered = -1;
  const labels = h("div.places");
  const list = h("ol.unseen.nearest", { "aria-label": "Nearest to the middle" });
  const cardHolder = h("div.card-place");
  const footer = h("p.map-foot");
  const legend = h("div.legend");
  const color = h(
    "select",
    { "aria-label": "Color by", onchange: (e) => recolor(e.target.value) },
    facts.columns.map((name) => h("option", { value: name, selected: name === "label" }, `Color: ${name}`)),
  );
  const lasso = (on) => {
    lassoing = on;
    draw.setAttribute("aria-pressed", String(on));
  };
  const draw = iconButton("lasso", "Select a region (Shift and drag)", () => lasso(!lassoing), {
    "aria-pressed": "false",
  });
  const bar = h(
    "div.map-bar",
    facts.columns.length ? color : null,
    h(
      "button",
      { id: "filters", onclick: () => facets.openFilters(readUrl(), filtered) },
      icon("filter"),
      h("span.wide", "Filter"),
    ),
    iconButton("plus", "Zoom in (+)", () => canvas.zoom(1.6)),
    iconButton("minus", "Zoom out (−)", () => canvas.zoom(1 / 1.6)),
    iconButton("fit", "Show all (0)", () => fitAll()),
    draw,
  );
  const chips = h("div.row.map-chips");
  canvas.node.append(labels, list);
  node.append(bar, chips, legend, cardHolder, footer);

  const here = (other) => urlFor({ ...readUrl(), ...other });
  const filtered = (f) => navigate(here({ f }), { replace: true });
  const mapPath = (rest) => `map/${canvas.cloud.gen}/${rest}`;
  const place = (i) => [canvas.cloud.x[i] / 65535, canvas.cloud.y[i] / 65535];
  const fitAll = () => flyTo(0.5, 0.5, 0.98);
  const where = (x, y, zoom) => `${x.toFixed(4)},${y.toFixed(4)},${zoom.toFixed(2)}`;

  /** Fly to a position; jump if the user prefers reduced motion. */
  function flyTo(x, y, zoom) {
    if (prefersReducedMotion()) return canvas.lookAt(x, y, zoom);
    const from = { ...viewport };
    const began = performance.now();
    const step = () => {
      const t = Math.min((performance.now() - began) / 300, 1);
      const ease = 1 - (1 - t) ** 3;
      canvas.lookAt(from.x + (x - from.x) * ease, from.y + (y - from.y) * ease, from.zoom * (zoom / from.zoom) ** ease);
      if (t < 1 && node.isConnected) requestAnimationFrame(step);
    };
    step();
  }

  function onIdle() {
    if (!node.isConnected) return;
    replaceUrl(here({ at: where(viewport.x, viewport.y, viewport.zoom) }));
    // Over thumbnails each label is shown once, above them.
    const side = canvas.side;
    const places = findPlaces(canvas.cloud, viewport).filter(
      (place, k, all) => !side || all.findIndex((one) => one.code === place.code) === k,
    );
    labels.classList.remove("moving");
    const focused = labels.contains(document.activeElement);
    fill(
      labels,
      places.map((place) => {
        const name = place.code === NONE || place.fraction <= 0.5 ? "" : readableLabel(names[place.code] ?? "");
        const words = name
          ? [h("b", h("bdi", name)), ` ${Math.round(100 * place.fraction)} %`]
          : [placeThumbnail(place.middle)];
        const percent = `${Math.round(100 * place.fraction)} %`;
        const label = `${name || "Place"}: ${plural(place.count, "image")}${name ? `, ${percent} of them` : ""}`;
        const nearer = [place.x, place.y, viewport.zoom * 2.5];
        return h(
          "a",
          {
            href: here({ at: where(...nearer) }),
            class: "place",
            "--x": `${place.px}px`,
            "--y": `${side ? Math.max(place.edge - side, 16) : place.py}px`,
            "aria-label": label,
            onclick: (event) => {
              if (!event.ctrlKey && !event.metaKey) {
                event.preventDefault();
                flyTo(...nearer);
              }
            },
          },
          words,
        );
      }),
    );
    if (focused) canvas.node.focus({ preventScroll: true }); // the focused label is gone
    setTimeout(nearest);
  }

  function nearest() {
    if (!node.isConnected) return;
    fill(
      list,
      pointsNearCenter(canvas.cloud, cells(), viewport, 20).map((i, k) =>
        h("li", h("button", { onfocus: () => ring(i), onclick: () => showCard(i) }, `Image ${k + 1} near the middle`)),
      ),
    );
  }

  function placeThumbnail(i) {
    const image = h("img", { alt: "", width: 40, height: 40 });
    if (i >= 0)
      api
        .get(mapPath(`point/${i}`))
        .then((item) => image.setAttribute("src", api.thumbUrl(item.thumb, 96)), api.messageOf);
    return image;
  }

  let hits = [];
  function ring(i) {
    const [x, y] = place(i);
    marks.rings = i < 0 ? hits : [...hits, { x, y, kind: "here" }];
    canvas.redraw();
  }

  /** Show an error in place of the card; if the map was redrawn meanwhile, load it at once. */
  function showError(error) {
    const message = api.messageOf(error);
    if (!node.isConnected) return;
    hideCard();
    fill(cardHolder, h("div.banner.floating", { role: "alert" }, message));
    if (error.status === 410) stop.again();
  }

  async function showCard(i) {
    const item = await api.get(mapPath(`point/${i}`)).catch(showError);
    if (!item || !node.isConnected) return;
    card = item;
    ring(i);
    const [px, py] = toScreen(viewport, ...place(i));
    const close = iconButton("close", "Close", hideCard, { class: "quiet icon" });
    fill(
      cardHolder,
      h(
        "div.card",
        {
          role: "group",
          "aria-label": title(item),
          "--x": `${Math.min(Math.max(px, 150), viewport.width - 150)}px`,
          "--y": `${py}px`,
          "data-above": py > viewport.height * 0.55,
          onpointerenter: () => clearTimeout(timer),
        },
        h(
          "a",
          { href: urlFor({ like: item.id }) },
          h("img", { src: api.thumbUrl(item.thumb, 256), alt: title(item), width: 240 }),
        ),
        row(h("strong", h("bdi", title(item))), h("span.grow"), close),
        h("small", h("bdi", joinText(item.columns.path))),
        row(h("button.main", { onclick: () => navigate(urlFor({ like: item.id })) }, icon("like"), "More like this")),
      ),
    );
  }
  function hideCard() {
    card = null;
    fill(cardHolder);
    ring(-1);
  }

  const after = (ms, act) => {
    clearTimeout(timer);
    timer = setTimeout(act, ms);
  };
  const key = attachInput(canvas, {
    hover(px, py) {
      const i = pickPoint(canvas.cloud, cells(), viewport, px, py);
      if (i === hovered) return;
      hovered = i;
      ring(i);
      if (i >= 0) after(125, () => showCard(i));
      else if (card) after(250, hideCard);
      else clearTimeout(timer);
    },
    leave: () => {
      hovered = -1;
      after(250, hideCard);
    },
    click(px, py) {
      const i = pickPoint(canvas.cloud, cells(), viewport, px, py, 24);
      i < 0 ? hideCard() : showCard(i);
    },
    lasso(line) {
      lasso(false);
      const number = countInside(canvas.cloud, line);
      const f = [...readUrl().f.filter((x) => !facets.parseFilter(x).drawn), areaFilter(canvas.cloud.gen, line)];
      const drop = () => {
        marks.line = [];
        fill(cardHolder);
        canvas.redraw();
      };
      fill(
        cardHolder,
        h(
          "div.banner.floating",
          { role: "status" },
          h("strong", plural(number, "image")),
          h(
            "button.main",
            { disabled: !number, onclick: () => navigate(here({ screen: "search", at: "", f })) },
            "Search in these",
          ),
          h(
            "button",
            { disabled: !number, onclick: () => navigate(urlFor({ screen: "duplicates", f })) },
            "Duplicates among these",
          ),
          h("button", { disabled: !number, onclick: () => browse(f) }, "Select in Browse"),
          h("button", { onclick: drop }, "Cancel"),
        ),
      );
    },
    lassoing: () => lassoing,
    fit: fitAll,
    moving: () => {
      labels.classList.add("moving");
      clearTimeout(timer);
      if (card) hideCard();
    },
  });
  const browse = withErrorToast(async (f) => {
    (await api.loadModule(() => import("../views/browse.js"))).selectAll();
    navigate(urlFor({ screen: "browse", f }));
  });
  async function recolor(next) {
    column = next;
    const base = mapPath(`codes/${encodeURIComponent(next)}`);
    const got = await Promise.all([api.get(base), api.getBytes(`${base}.bin`)]).catch(showError);
    if (!got) return;
    names = got[0].names;
    canvas.show({ ...canvas.cloud, codes: new Uint16Array(got[1]) });
    onIdle();
    drawLegend();
  }

  function drawLegend() {
    const used = names.slice(0, 11);
    fill(
      legend,
      used.length > 1
        ? used.map((name, k) => h("span", h("i", { "--c": COLORS[k] }), h("bdi", readableLabel(name))))
        : [],
      names.length > 11 ? h("span", h("i", { "--c": COLORS[11] }), `${names.length - 11} others`) : null,
    );
  }

  /** Dim points that do not match the filters; mark the query and its hits by rings. */
  async function follow(now) {
    fill(chips, facets.chips(now.f, filtered));
    const query = new URLSearchParams(now.f.map((f) => ["f", f]));
    const bits = now.f.length && (await api.getBytes(mapPath(`mask?${query}`)).catch(showError));
    const mask = bits ? new Uint8Array(bits) : null;
    if (mask || canvas.cloud.mask) canvas.show({ ...canvas.cloud, mask });
    hits = [];
    if (hasQuery(now)) {
      const answer = await api.get(searchPath({ ...now, f: [] }, 20));
      const ids = [now.like, ...answer.hits.map((hit) => hit.id)].filter(Boolean).slice(0, 20);
      const { points } = await api.get(mapPath(`locate?${new URLSearchParams(ids.map((id) => ["id", id]))}`));
      hits = points.map((p) => ({ x: p.x, y: p.y, kind: p.id === now.like ? "query" : "hit" })).reverse();
      const last = hits.at(-1);
      if (last?.kind === "query" && !now.at) flyTo(last.x, last.y, 3);
    }
    if (hits.length || marks.rings.length) ring(-1);
  }

  function showStatus(now) {
    const recall = Math.round(100 * now.neighbor_recall[1]);
    const busy = now.job?.state === "running";
    const quality =
      now.method === "t-SNE"
        ? `neighbors preserved: ${recall} %`
        : `A preliminary layout (neighbors preserved: ${recall} %).`;
    const redraw = h(
      "button.linkish",
      { onclick: () => api.send("map/draw").then(stop.again).catch(showError) },
      "Redraw",
    );
    fill(
      footer,
      `${plural(now.n, "image")} · ${quality}`,
      busy ? ` ${drawingMessage(now)}` : info.rights === "write" ? [" ", redraw] : null,
    );
    const nearest = `${Math.round(100 * now.neighbor_recall[0])} % are among its 10 nearest here`;
    footer.title = `Of each image's 10 nearest, ${nearest} and ${recall} % among its 50.`;
  }

  /** The map was redrawn: move points to their new positions. */
  async function change(next, now) {
    const animated = now.previous === canvas.cloud.gen && !prefersReducedMotion();
    const was = animated ? new Int32Array(await api.getBytes(`map/${now.gen}/from/${now.previous}.bin`)) : null;
    index = buildGrid(next);
    names = now.labels;
    made.gen = now.gen;
    hideCard();
    showStatus(now);
    drawLegend();
    if (was) await canvas.animateTo(next, was);
    else canvas.show(next);
    await follow(readUrl());
    onIdle();
    if (column !== "label") recolor(column);
    toast("The map has been updated.");
  }

  const made = {
    node,
    gen: facts.gen,
    follow,
    tell: showStatus,
    change,
    key,
    get card() {
      return card;
    },
    close: () => {
      if (!card && !cardHolder.childElementCount) return false;
      hideCard();
      marks.line = [];
      canvas.redraw();
      return true;
    },
    end: () => {
      stop();
      canvas.close();
      clearTimeout(timer);
    },
  };
  showStatus(facts);
  drawLegend();
  canvas.onIdle(onIdle);
  follow(readUrl()).catch(showError);
  setTimeout(canvas.tryWebgl, 1000); // after the first paint
  return made;
}
