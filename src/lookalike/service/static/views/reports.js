// Reports of runs, newest first; each opens as a page of its own, boxed off from this one.

import { get } from "../api.js";
import { fill, h, icon } from "../dom.js";

/** @param {HTMLElement} main */
export async function render(main) {
  const list = h("div", { class: "reports" });
  fill(main, h("div", { class: "screen" }, h("h1", null, "Reports"), list));
  document.title = "Reports · lookalike";
  const { reports } = await get("/api/v1/reports");
  if (!reports.length) {
    fill(list);
    list.replaceWith(h("p", { class: "empty" }, "No reports here yet. ", h("code", null, "lookalike train FOLDER"),
      " makes one; it appears by itself."));
    return;
  }
  fill(list, reports.map((/** @type {any} */ report) =>
    h("a", { class: "report", href: `/reports/${encodeURIComponent(report.name)}`, target: "_blank", rel: "noopener" },
      h("div", { class: "row" }, icon("report"), h("strong", null, h("bdi", null, report.name))),
      h("span", null, report.verdict || "Open the report to see what was measured."),
      h("small", null, [report.method, report.created.replace("T", " ").slice(0, 16)].filter(Boolean).join(" · ")))));
}
