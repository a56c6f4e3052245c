// Review of duplicates, one group at a time, with a suggestion, its reason, and undo.

import * as api from "../api.js";
import { errorBanner } from "../components/messages.js";
import { filterChips } from "../components/results.js";
import {
  actionButton,
  fill,
  formatNumber,
  h,
  icon,
  iconButton,
  joinText,
  plural,
  row,
  toast,
  withErrorToast,
} from "../dom.js";
import { readUrl, replaceUrl, urlFor } from "../router.js";
import { canWrite, getState } from "../store.js";
import { bulkMove, fetchGroups, formatBytes, moveHistory as movedBefore, notMoved } from "./bulk_move.js";

const KINDS = [
  ["identical", "Identical"],
  ["same", "Same"],
  ["near", "Near"],
];
const PAGE = 50;
const view = {
  main: null,
  kind: "",
  facts: null,
  groups: new Map(),
  total: 0,
  keep: new Set(),
  zoom: null,
  undo: [],
  stop: null,
  prefer: "",
  f: "",
};

export function leave() {
  view.stop?.();
  view.stop = null;
}

export async function render(main, _info, state) {
  view.main = main;
  const kind = KINDS.some(([name]) => name === state.rest) ? state.rest : "identical";
  if (!view.stop) {
    view.facts = null;
    fill(main, h("div.screen", h("h1", "Duplicates"), h("p.empty", "Searching…")));
    view.stop = api.poll(
      "duplicates",
      (facts) => {
        const before = view.facts;
        view.facts = facts;
        if (!before || before.state !== facts.state || before.when !== facts.when || facts.state !== "ready") {
          view.groups.clear();
          drawScreen();
        }
      },
      (facts) => (facts.state === "running" ? 800 : 10000),
    );
    view.kind = kind;
    view.f = String(state.f);
    return;
  }
  if (kind !== view.kind || String(state.f) !== view.f) {
    view.kind = kind;
    view.f = String(state.f);
    view.groups.clear();
  }
  if (view.facts) await drawScreen();
}

async function drawScreen() {
  const { facts } = view;
  const state = readUrl();
  if (state.screen !== "duplicates") return;
  const find = canWrite()
    ? actionButton(
        facts.when ? "Search again" : "Find duplicates",
        async () => {
          await api.send("duplicates/find");
          view.stop?.();
          view.stop = null;
          render(view.main, getState("info"), state);
        },
        facts.when ? "" : ".main",
      )
    : facts.when
      ? null
      : "Duplicates have not been searched for yet, and this key can only read.";
  const title = h("h1", "Duplicates");
  if (facts.state === "running") {
    const job = facts.job;
    const left = job?.seconds_left ? `: about ${job.seconds_left} s.` : "…";
    return fill(
      view.main,
      h(
        "div.screen",
        title,
        h("p.empty", { role: "status" }, `${job?.phase || "Searching for duplicates"}${left}`),
        job?.total ? h("progress", { max: job.total, value: job.done, "aria-label": "Progress" }) : null,
      ),
    );
  }
  if (facts.state !== "ready") {
    return fill(
      view.main,
      h(
        "div.screen",
        title,
        h(
          "div.empty",
          h("p", "Finds identical files, the same image in several sizes, and images taken right after each other."),
          h("p.row.center", find),
          h("p", "Searching does not move anything."),
        ),
      ),
    );
  }
  const all = KINDS.reduce((sum, [kind]) => sum + (facts.counts?.[kind]?.groups ?? 0), 0);
  const tabs = h(
    "div.tabs",
    { role: "tablist", "aria-label": "Kinds of duplicates" },
    KINDS.map(([kind, name]) =>
      h(
        "a",
        {
          role: "tab",
          href: urlFor({ screen: "duplicates", rest: kind, f: state.f }),
          "aria-selected": String(kind === view.kind),
          tabindex: kind === view.kind ? 0 : -1,
        },
        `${name} `,
        h("b", formatNumber(facts.counts?.[kind]?.groups ?? 0)),
      ),
    ),
  );
  const past = actionButton([icon("back"), "History"], () => movedBefore(refresh), ".quiet");
  const place = h("div.group-place");
  fill(
    view.main,
    h(
      "div.screen.duplicates",
      row(title, h("span.grow"), past, all ? find : null),
      all ? tabs : null,
      state.f.length ? filterChips(state) : null,
      facts.can_move && canWrite()
        ? null
        : h(
            "div.banner",
            !canWrite()
              ? "This key can only read: duplicates are listed, but cannot be moved."
              : facts.reason || "This folder cannot be written to: duplicates are listed, moving is off.",
          ),
      place,
    ),
  );
  if (!all)
    return fill(
      place,
      h("div.empty", h("p", `No duplicates among ${plural(facts.images, "image")}.`), h("p.row.center", find)),
    );
  view.place = place;
  await goToGroup(state.g || 1);
}

/** Get a group by number; groups are fetched fifty at a time. */
async function fetchGroup(number) {
  if (!view.groups.has(number)) {
    const offset = Math.floor((number - 1) / PAGE) * PAGE;
    const answer = await fetchGroups(view.kind, offset, PAGE, view.prefer);
    view.total = answer.total;
    for (const [k, one] of answer.groups.entries()) view.groups.set(offset + k + 1, one);
  }
  return view.groups.get(number);
}

async function goToGroup(number) {
  try {
    let one = await fetchGroup(Math.max(1, number));
    if (!one && view.total) {
      number = number > view.total ? 1 : view.total;
      one = await fetchGroup(number);
    }
    if (!one) return fill(view.place, h("p.empty", "All groups of this kind are done."));
    view.number = Math.max(1, number);
    replaceUrl(urlFor({ ...readUrl(), rest: view.kind, g: view.number }));
    view.one = one;
    view.keep = new Set(one.files.filter((file) => file.keep).map((file) => file.id));
    drawGroup();
  } catch (error) {
    fill(
      view.place,
      errorBanner(error, () => goToGroup(number)),
    );
  }
}

function drawGroup() {
  const { one, keep, facts } = view;
  const moves = one.files.filter((file) => !keep.has(file.id));
  const may = facts.can_move && canWrite();
  const words = moves.length ? `Keep ${keep.size}, move ${moves.length}` : "Keep all";
  const tiles = one.files.map((file, k) => tile(file, k));
  const stage = h("div", { class: `images n${Math.min(one.files.length, 4)}` }, tiles);
  const fold = h("input", {
    type: "search",
    value: view.prefer,
    placeholder: "prefer a folder",
    "aria-label": "Prefer files whose path begins with",
    onchange: (e) => {
      view.prefer = e.target.value.trim();
      view.groups.clear();
      goToGroup(view.number);
    },
  });
  fill(
    view.place,
    row(
      iconButton("left", "Previous group", () => goToGroup(view.number - 1 || view.total)),
      h("span", { "aria-live": "polite" }, `${formatNumber(view.number)} / ${formatNumber(view.total)}`),
      iconButton("right", "Next group", () => goToGroup((view.number % view.total) + 1)),
      h("span.grow"),
      fold,
      may
        ? actionButton(`Move suggested (${plural(view.total, "group")})`, () =>
            bulkMove(view.kind, view.prefer, facts, refresh),
          )
        : null,
    ),
    stage,
    h("p.reason", one.reason ? `Kept: ${one.reason.replace(/^kept:?\s*/i, "")}` : ""),
    canWrite()
      ? h(
          "div.row.accept",
          h("button.main", { disabled: !may && moves.length, onclick: acceptGroup }, words, " ", h("kbd", "Enter")),
          h("button", { onclick: dismissGroup }, "Not duplicates ", h("kbd", "x")),
          h("button", { disabled: !view.undo.length, onclick: undo }, "Undo ", h("kbd", "u")),
        )
      : null,
  );
  if (view.zoom) drawZoomed();
}

function tile(file, k) {
  const keep = view.keep.has(file.id);
  const facts = [
    file.width ? `${file.width}×${file.height}` : "",
    file.bytes ? formatBytes(file.bytes) : "",
    joinText(file.date).slice(0, 10),
    file.has_location ? "has a location" : "",
  ]
    .filter(Boolean)
    .join(" · ");
  return h(
    "figure",
    { class: keep ? "keep" : "move", "data-k": k },
    h(
      "button.flip",
      {
        "aria-pressed": String(keep),
        disabled: !canWrite(),
        "aria-label": `${keep ? "Keep" : "Move"} ${file.columns.path}`,
        onclick: () => toggleKeep(k),
      },
      h("img", { src: api.thumbUrl(file.thumb, 1024), alt: "", "--mean": file.color }),
      h("span.tag", h("b", String(k + 1)), keep ? " KEEP" : " move"),
    ),
    h("figcaption", h("bdi", file.columns.path), h("small", facts)),
  );
}

function toggleKeep(k) {
  const file = view.one.files[k];
  if (!file) return;
  if (view.keep.has(file.id)) {
    if (view.keep.size === 1) return toast("At least one image of a group stays.");
    view.keep.delete(file.id);
  } else {
    view.keep.add(file.id);
  }
  drawGroup();
}

const acceptGroup = withErrorToast(async () => {
  const { one } = view;
  const move = one.files.filter((file) => !view.keep.has(file.id)).map((file) => file.id);
  if (!move.length) return dismissGroup();
  const batch = await api.send("duplicates/move", { groups: [{ id: one.id, move }] });
  view.undo.push({ kind: "move", batch: batch.id, number: view.number });
  toast(`Moved ${plural(batch.files ?? move.length, "file")} to ${batch.folder}${notMoved(batch)}.`);
  await refresh();
});

const dismissGroup = withErrorToast(async () => {
  await api.send("duplicates/dismiss", { group: view.one.id });
  view.undo.push({ kind: "apart", group: view.one.id, number: view.number });
  toast("Remembered: these are not duplicates.");
  await refresh();
});

const undo = withErrorToast(async () => {
  const last = view.undo.pop();
  if (!last) return toast("There is nothing to undo.");
  let answer;
  try {
    answer =
      last.kind === "apart"
        ? await api.send("duplicates/dismiss", { group: last.group, undo: true })
        : await api.send(`duplicates/history/${encodeURIComponent(last.batch)}/undo`);
  } catch (error) {
    view.undo.push(last);
    throw error;
  }
  toast(last.kind === "apart" ? "Undone." : `Moved back${notMoved(answer)}.`);
  replaceUrl(urlFor({ ...readUrl(), g: last.number })); // the group is in its place again
  await refresh();
});

/** Reload the counts and the current group after a change. */
async function refresh() {
  view.groups.clear();
  view.facts = await api.getFresh("duplicates");
  if (readUrl().screen === "duplicates") await drawScreen();
}

/** Magnify one image; arrow keys switch images at the same position. */
function drawZoomed() {
  const files = view.one.files;
  const file = files[view.zoom.k % files.length];
  const image = h("img", { src: api.thumbUrl(file.thumb, 1024), alt: file.columns.path, draggable: "false" });
  const stage = h(
    "div.magnified",
    {
      "--ox": `${view.zoom.x}%`,
      "--oy": `${view.zoom.y}%`,
      onpointermove: (event) => {
        const box = stage.getBoundingClientRect();
        view.zoom.x = (100 * (event.clientX - box.left)) / box.width;
        view.zoom.y = (100 * (event.clientY - box.top)) / box.height;
        stage.style.setProperty("--ox", `${view.zoom.x}%`);
        stage.style.setProperty("--oy", `${view.zoom.y}%`);
      },
    },
    image,
    h("span.tag", `${(view.zoom.k % files.length) + 1} of ${files.length} · `, h("bdi", file.columns.path)),
  );
  fill(view.place.querySelector(".images"), stage);
}

/** Handle a key; whether it was one of this screen's. @param {KeyboardEvent} event */
export function key(event) {
  if (!view.one || !view.place?.isConnected) return false;
  const zoom = view.zoom;
  const may = canWrite();
  if (may && /^[1-9]$/.test(event.key)) toggleKeep(Number(event.key) - 1);
  else if (
    may &&
    event.key === "Enter" &&
    !(event.target instanceof HTMLButtonElement || event.target instanceof HTMLAnchorElement)
  )
    acceptGroup();
  else if (may && event.key === "x") dismissGroup();
  else if (may && (event.key === "u" || (event.ctrlKey && event.key === "z"))) undo();
  else if (event.key === "z") {
    view.zoom = zoom ? null : { k: 0, x: 50, y: 50 };
    drawGroup();
  } else if (event.key === "Escape" && zoom) {
    view.zoom = null;
    drawGroup();
  } else if (zoom && (event.key === "ArrowRight" || event.key === "ArrowLeft")) {
    zoom.k += event.key === "ArrowRight" ? 1 : view.one.files.length - 1;
    drawZoomed();
  } else if (event.key === "ArrowRight") goToGroup((view.number % view.total) + 1);
  else if (event.key === "ArrowLeft") goToGroup(view.number - 1 || view.total);
  else if (event.key === " " && event.target === document.body) swap();
  else return false;
  return true;
}

/** Swap the first two images. */
function swap() {
  const tiles = [...view.place.querySelectorAll("figure")];
  view.place.querySelector(".images").append(tiles[0]);
}
