// Runs with their curves while they grow, and the index while it does.

import * as api from "../api.js";
import { lines, spark } from "../chart.js";
import { action, count, digits, fill, h, icon, minute, table } from "../dom.js";
import { dialog } from "../parts/dialogs.js";
import { failure, ticked } from "../parts/states.js";
import { address } from "../router.js";
import { on, value, writes } from "../store.js";

let ends = [];

export function leave() {
  for (const end of ends) end();
  ends = [];
}

const round = (v) => (typeof v === "number" ? v.toFixed(3) : "–");
const running = (answer) => (answer.runs ?? [answer]).some((run) => run.state === "running");

/** The links that have no place in the bar above. @param {string} here */
export function more(here) {
  return h("nav.tabs", { "aria-label": "Runs, settings and the API" }, [["runs", "Runs and index"], ["settings", "Settings"], ["api", "API"]].map(([screen, name]) =>
    h("a", { href: address({ screen }), "aria-current": screen === here ? "page" : null }, name)));
}

export async function render(main, info, state) {
  leave();
  if (state.rest) return one(main, state.rest);
  const rows = h("div.runs");
  const index = h("section.panel", { "aria-label": "Index" });
  fill(main, h("div.screen", more("runs"), h("h1", "Runs"), rows, h("h2", "Index"), index));
  ends.push(api.poll("runs", (answer) => fill(rows, answer.runs.length ? answer.runs.map(row)
    : h("p.empty", "No runs here yet. ", h("code", "lookalike train FOLDER"), " makes one; it appears by itself.")),
  (answer) => (running(answer) ? 2000 : 10000)));
  drawIndex(index, value("moving"));
  ends.push(on("moving", (moving) => drawIndex(index, moving)));
}

function row(run) {
  const state = { running: `step ${digits(run.step ?? 0)}${run.steps ? ` / ${digits(run.steps)}` : ""}`, finished: "finished", stopped: `stopped at step ${run.step ?? 0}` }[run.state] ?? run.state;
  return h("article", { class: `run ${run.state}` }, h("h2", h("a", { href: address({ screen: "runs", rest: run.name }) }, h("bdi", run.name))),
    spark(run.curve ?? []), h("b", { title: run.metric ?? "" }, round(run.best ?? run.last)), h("span.state", state),
    h("small", [run.method, minute(run.created)].filter(Boolean).join(" · ")),
    report(run));
}

function drawIndex(place, moving) {
  if (!moving) return;
  const { index, job } = moving;
  const mine = job && ["index", "switch"].includes(job.kind) ? job : null;
  const bad = index.unreadable ? h("span", `${count(index.unreadable, "file")} could not be read `, action("Show", unreadable, ".linkish")) : null;
  const bar = mine?.total ? h("progress", { max: mine.total, value: mine.done, "aria-label": mine.title }) : null;
  const left = mine?.seconds_left ? `about ${mine.seconds_left} s` : "";
  fill(place, h("div.row", h("strong", h("bdi", index.name)), bar,
    h("span", mine?.total ? `${mine.phase || mine.title}: ${digits(mine.done)} of ${digits(mine.total)}` : count(index.images, "image")), left, bad,
    h("span.grow"),
    writes() ? action(mine ? "Stop" : "Bring up to date", () => api.send(mine ? `jobs/${mine.id}/stop` : "index/update")) : null),
    h("small", `Model ${index.model} · updated ${minute(index.updated)}`),
    moving.jobs?.length ? h("ul.rows", moving.jobs.filter((j) => j.sentence).slice(0, 3).map((j) => h("li", ticked(j.sentence)))) : null);
}

const report = (run) => run.report ? h("a.button", { href: `/reports/${encodeURIComponent(run.name)}`, target: "_blank", rel: "noopener" }, icon("report"), "Report") : null;

async function unreadable() {
  const { files } = await api.fresh("index/unreadable");
  dialog("Files that could not be read", table("Files", ["File", "Reason"], files.map((file) => [h("bdi", file.path), file.reason])));
}

function one(main, name) {
  const body = h("div.screen", h("h1", h("bdi", name)));
  fill(main, body);
  ends.push(api.poll(`runs/${encodeURIComponent(name)}`, (run) => draw(body, run), (run) => (run.state === "running" ? 2000 : 15000), (error) => fill(body, h("h1", h("bdi", name)), failure({ message: error.message }))));
}

function draw(body, run) {
  const metric = run.series.find((one) => [run.metric, `validation/${run.metric}`].includes(one.name));
  const losses = run.series.filter((one) => /loss/.test(one.name));
  const rest = run.series.filter((one) => one !== metric && !losses.includes(one) && one.y.length > 1);
  const best = typeof run.best === "number" ? `Best${run.state === "finished" ? "" : " so far"}: step ${run.best_step}, ${run.metric} ${round(run.best)}${run.state === "finished" ? " on the validation images" : ""}.` : "";
  const first = typeof run.first === "number" ? [{ name: "step 0", value: run.first }] : [];
  const whole = run.measured.map((one) => `${one.name} ${round(one.value)}${"low" in one ? ` (${round(one.low)}–${round(one.high)})` : ""}`).join(" · ");
  const stopped = run.state === "stopped" ? h("p", `Stopped at step ${run.step ?? 0}. Continue with `, h("code", run.resume || `lookalike train --resume ${run.name}`), ".") : null;
  fill(body, h("p", h("a", { href: "/runs" }, icon("left"), "All runs")), h("h1", h("bdi", run.name)),
    h("p.lead-line", { role: "status" }, run.verdict || best || "Nothing was measured yet."), run.verdict && best ? h("p", best) : null,
    whole ? h("p", `${run.metric} on the ${run.side || "held-out"} images: ${whole}`) : null, stopped,
    run.report ? h("p", report(run)) : null,
    h("div.charts", metric ? lines({ title: run.metric, series: [metric], levels: first }) : null,
      losses.length ? lines({ title: "loss", series: losses }) : null),
    rest.length ? h("details", h("summary", `${rest.length} further curves`), h("div.charts", rest.map((series) => lines({ title: series.name, series: [series] })))) : null);
}
