// Reports of runs, newest first; each opens as a sandboxed page of its own.

import { poll } from "../api.js";
import { fill, formatTime, h, icon, row } from "../dom.js";

let stop = () => {};
export const leave = () => stop();

export function render(main) {
  const list = h("div.reports");
  fill(main, h("div.screen", h("h1", "Reports"), list));
  leave();
  stop = poll(
    "reports",
    ({ reports }) =>
      fill(
        list,
        reports.length
          ? reports.map(card)
          : h(
              "p.empty",
              "No reports yet. ",
              h("code", "lookalike train FOLDER"),
              " creates one; it then appears here.",
            ),
      ),
    () => 10000,
  );
}

const card = (report) =>
  h(
    "a.report",
    { href: `/reports/${encodeURIComponent(report.name)}`, target: "_blank", rel: "noopener" },
    row(icon("report"), h("strong", h("bdi", report.name))),
    h("span", report.verdict || "Open the report to see what was measured."),
    h("small", [report.method, formatTime(report.created)].filter(Boolean).join(" · ")),
  );
