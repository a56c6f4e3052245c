// Reports of runs, newest first; each opens as a page of its own, boxed off from this one.

import { poll } from "../api.js";
import { fill, h, icon, minute, row } from "../dom.js";

let stop = () => {};
export const leave = () => stop();

export function render(main) {
  document.title = "Reports · lookalike";
  const list = h("div", { class: "reports" });
  fill(main, h("div", { class: "screen" }, h("h1", null, "Reports"), list));
  leave();
  stop = poll("/api/v1/reports", ({ reports }) => fill(list, reports.length ? reports.map(card)
    : h("p", { class: "empty" }, "No reports here yet. ", h("code", null, "lookalike train FOLDER"), " makes one; it appears by itself.")), () => 10000);
}

const card = (report) => h("a", { class: "report", href: `/reports/${encodeURIComponent(report.name)}`, target: "_blank", rel: "noopener" },
  row(icon("report"), h("strong", null, h("bdi", null, report.name))),
  h("span", null, report.verdict || "Open the report to see what was measured."),
  h("small", null, [report.method, minute(report.created)].filter(Boolean).join(" · ")));
