// Runs with live curves, and the state of the index.

import * as api from "../api.js";
import { lineChart, sparkline } from "../chart.js";
import { dialog } from "../components/dialogs.js";
import { errorBanner, withCode } from "../components/messages.js";
import { actionButton, decimal, fill, formatNumber, formatTime, h, icon, plural, table } from "../dom.js";
import { urlFor } from "../router.js";
import { canWrite, getState, subscribe } from "../store.js";

let stops = [];

export function leave() {
  for (const end of stops) end();
  stops = [];
}

const round = (v) => (typeof v === "number" ? decimal(v) : "–");
/** The figure that a run is judged by: on the test images once they were measured, else on the validation images. */
function figure(run) {
  const trained = run.measured.find((one) => one.name === "trained");
  if (trained) return { value: trained.value, where: `${run.metric}, ${run.side || "test"}` };
  const value = run.best ?? run.last;
  return { value, where: typeof value === "number" ? `${run.metric}, validation` : "" };
}
const running = (answer) => (answer.runs ?? [answer]).some((run) => run.state === "running");

/** Tabs for screens without an entry in the header. @param {string} here */
export function sectionTabs(here) {
  return h(
    "nav.tabs",
    { "aria-label": "Runs, settings and the API" },
    [
      ["runs", "Runs and index"],
      ["settings", "Settings"],
      ["api", "API"],
    ].map(([screen, name]) =>
      h("a", { href: urlFor({ screen }), "aria-current": screen === here ? "page" : null }, name),
    ),
  );
}

export async function render(main, _info, state) {
  leave();
  if (state.rest) return showRun(main, state.rest);
  const rows = h("div.runs");
  const index = h("section.panel", { "aria-label": "Index" });
  fill(main, h("div.screen", sectionTabs("runs"), h("h1", "Runs"), rows, h("h2", "Index"), index));
  stops.push(
    api.poll(
      "runs",
      (answer) =>
        fill(
          rows,
          answer.runs.length
            ? answer.runs.map(runRow)
            : h("p.empty", "No runs yet. ", h("code", "lookalike train FOLDER"), " creates one; it then appears here."),
        ),
      (answer) => (running(answer) ? 2000 : 10000),
    ),
  );
  drawIndex(index, getState("status"));
  stops.push(subscribe("status", (status) => drawIndex(index, status)));
}

function runRow(run) {
  const state =
    {
      running: `step ${formatNumber(run.step ?? 0)}${run.steps ? ` / ${formatNumber(run.steps)}` : ""}`,
      finished: "finished",
      stopped: `stopped at step ${run.step ?? 0}`,
    }[run.state] ?? run.state;
  return h(
    "article",
    { class: `run ${run.state}` },
    h("h2", h("a", { href: urlFor({ screen: "runs", rest: run.name }) }, h("bdi", run.name))),
    sparkline(run.curve ?? []),
    h("span.figure", h("b", round(figure(run).value)), h("small", figure(run).where)),
    h("span.state", state),
    h("small", [run.method, formatTime(run.created)].filter(Boolean).join(" · ")),
    reportLink(run),
  );
}

function drawIndex(place, status) {
  if (!status) return;
  const { index, job } = status;
  const mine = job && ["index", "switch"].includes(job.kind) ? job : null;
  const bad = index.unreadable
    ? h("span", `${plural(index.unreadable, "file")} could not be read `, actionButton("Show", unreadable, ".linkish"))
    : null;
  const bar = mine?.total ? h("progress", { max: mine.total, value: mine.done, "aria-label": mine.title }) : null;
  const left = mine?.seconds_left ? `about ${mine.seconds_left} s` : "";
  fill(
    place,
    h(
      "div.row",
      h("strong", h("bdi", index.name)),
      bar,
      h(
        "span",
        mine?.total
          ? `${mine.phase || mine.title}: ${formatNumber(mine.done)} of ${formatNumber(mine.total)}`
          : plural(index.images, "image"),
      ),
      left,
      bad,
      h("span.grow"),
      canWrite()
        ? actionButton(mine ? "Stop" : "Update", () => api.send(mine ? `jobs/${mine.id}/stop` : "index/update"))
        : null,
    ),
    h("small", `Model ${index.model} · updated ${formatTime(index.updated)}`),
    status.jobs?.length
      ? h(
          "ul.rows",
          status.jobs
            .filter((j) => j.message)
            .slice(0, 3)
            .map((j) => h("li", withCode(j.message))),
        )
      : null,
  );
}

const reportLink = (run) =>
  run.report
    ? h(
        "a.button",
        { href: `/reports/${encodeURIComponent(run.name)}`, target: "_blank", rel: "noopener" },
        icon("report"),
        "Report",
      )
    : null;

async function unreadable() {
  const { files } = await api.getFresh("index/unreadable");
  dialog(
    "Files that could not be read",
    table(
      "Files",
      ["File", "Reason"],
      files.map((file) => [h("bdi", file.path), file.reason]),
    ),
  );
}

function showRun(main, name) {
  const body = h("div.screen", h("h1", h("bdi", name)));
  fill(main, body);
  stops.push(
    api.poll(
      `runs/${encodeURIComponent(name)}`,
      (run) => draw(body, run),
      (run) => (run.state === "running" ? 2000 : 15000),
      (error) => fill(body, h("h1", h("bdi", name)), errorBanner({ message: error.message }, null)),
    ),
  );
}

function draw(body, run) {
  const metric = run.series.find((one) => [run.metric, `validation/${run.metric}`].includes(one.name));
  const losses = run.series.filter((one) => /loss/.test(one.name));
  const rest = run.series.filter((one) => one !== metric && !losses.includes(one) && one.y.length > 1);
  const done = run.state === "finished";
  const split = done ? " on the validation images" : "";
  const best =
    typeof run.best === "number"
      ? `Best${done ? "" : " so far"}: step ${run.best_step}, ${run.metric} ${round(run.best)}${split}.`
      : "";
  const first = typeof run.first === "number" ? [{ name: "step 0", value: run.first }] : [];
  const whole = run.measured
    .map((one) => `${one.name} ${round(one.value)}${"low" in one ? ` (${round(one.low)}–${round(one.high)})` : ""}`)
    .join(" · ");
  const stopped =
    run.state === "stopped"
      ? h(
          "p",
          `Stopped at step ${run.step ?? 0}. Continue with `,
          h("code", run.resume || `lookalike train --resume ${run.name}`),
          ".",
        )
      : null;
  fill(
    body,
    h("p", h("a", { href: "/runs" }, icon("left"), "All runs")),
    h("h1", h("bdi", run.name)),
    h("p.lead-line", { role: "status" }, run.verdict || best || "Nothing has been measured yet."),
    run.verdict && best ? h("p", best) : null,
    whole ? h("p", `${run.metric} on the ${run.side || "held-out"} images: ${whole}`) : null,
    stopped,
    run.report ? h("p", reportLink(run)) : null,
    h(
      "div.charts",
      metric ? lineChart({ title: run.metric, series: [metric], levels: first }) : null,
      losses.length ? lineChart({ title: "loss", series: losses }) : null,
    ),
    rest.length
      ? h(
          "details",
          h("summary", `${rest.length} further curves`),
          h(
            "div.charts",
            rest.map((series) => lineChart({ title: series.name, series: [series] })),
          ),
        )
      : null,
  );
}
