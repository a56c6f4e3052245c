// The model in use and the change to another, keys, and the reader's own choices.

import * as api from "../api.js";
import { count, fill, h, minute, row, text, toast } from "../dom.js";
import { confirm, dialog } from "../parts/dialogs.js";
import { choice, choose, on, value } from "../store.js";
import { more } from "./runs.js";

let ends = [];

export function leave() {
  for (const end of ends) end();
  ends = [];
}

/** @param {() => Promise<any>} act */
const guarded = (act) => async () => {
  try {
    await act();
  } catch (error) {
    toast(api.said(error));
  }
};

export async function render(main) {
  leave();
  document.title = "Settings · lookalike";
  const model = h("section", { class: "panel", "aria-labelledby": "s-model" });
  const keys = h("section", { class: "panel", "aria-labelledby": "s-keys" });
  fill(main, h("div", { class: "screen narrow" }, more("settings"), h("h1", null, "Settings"), model, keys, reader()));
  ends.push(api.poll("/api/v1/generations", (facts) => drawModel(model, facts), () => 4000));
  let seen = "";
  ends.push(on("moving", async (moving) => {
    const last = moving.jobs?.find((job) => job.kind === "switch");
    if (last && JSON.stringify(last) !== seen) { seen = JSON.stringify(last); drawModel(model, await api.fresh("/api/v1/generations")); }
  }));
  if (value("info").rights === "write") await drawKeys(keys);
  else fill(keys, h("h2", { id: "s-keys" }, "Keys"), h("p", null, "This key may only read; keys are made by those who may write."));
}

function drawModel(place, facts) {
  const { info, moving } = { info: value("info"), moving: value("moving") };
  const live = facts.generations.find((g) => g.live);
  const write = info.rights === "write";
  const job = moving?.jobs?.find((j) => j.kind === "switch");
  const busy = job?.state === "running";
  const ece = typeof live?.ece === "number" ? ` · ECE ${live.ece.toFixed(3)}` : "";
  const select = h("select", { "aria-label": "Model to switch to" }, facts.models.filter((m) => m.name !== live?.model.name).map((m) =>
    h("option", { value: m.name }, `${m.name}${typeof m.best === "number" ? ` (${m.metric} ${m.best.toFixed(3)})` : ""}`)));
  const start = guarded(async () => { await api.send("/api/v1/switch", { model: select.value }); toast("Embedding beside the old index; searches go on meanwhile."); });
  const old = facts.generations.filter((g) => !g.live);
  fill(place, h("h2", { id: "s-model" }, "Model"),
    h("p", null, h("strong", null, h("bdi", null, live?.model.name ?? info.model.name)), `${ece} · ${text(live?.model.fingerprint ?? info.model.fingerprint).slice(0, 4)} · ${count(live?.pictures ?? info.index.pictures, "picture")}`),
    busy ? steps(job) : null,
    job?.state === "finished" && job.sentence ? h("div", { class: "banner", role: "status" }, job.sentence, compared(job.result), job.result?.before !== undefined && job.result.generation === facts.live ?
      h("button", { onclick: guarded(async () => { await api.send("/api/v1/switch", { generation: job.result.before }); toast("Switched back."); location.reload(); }) }, "Switch back") : null) : null,
    job?.state === "failed" ? h("div", { class: "banner bad", role: "alert" }, job.sentence) : null,
    write && !busy && select.options.length ? row("Switch to", select, h("button", { class: "main", onclick: start }, "Embed and compare")) : null,
    old.length ? h("ul", { class: "rows" }, old.map((g) => h("li", { class: "row" }, h("bdi", null, g.model.name), h("small", null, `${g.model.fingerprint.slice(0, 4)} · ${count(g.pictures, "picture")}${g.complete ? "" : " · not finished"}`), h("span", { class: "grow" }),
      write && g.complete ? h("button", { onclick: guarded(async () => { await api.send("/api/v1/switch", { generation: g.number }); location.reload(); }) }, "Switch back") : null,
      write ? h("button", { onclick: guarded(async () => { if (await confirm("Delete vectors", `Delete the vectors of ${g.model.name}? The pictures stay.`, "Delete")) { await api.send(`/api/v1/generations/${g.number}`, null, "DELETE"); drawModel(place, await api.fresh("/api/v1/generations")); } }) }, "Delete") : null))) : null);
}

/** Embed, compare, switch: where it is. */
function steps(job) {
  const share = job.total ? `${Math.floor((100 * job.done) / job.total)} %` : "";
  const phase = /compar/i.test(job.phase) ? 1 : 0;
  return h("div", { class: "steps" }, ["embed", "compare", "switch", "keep old"].map((name, k) => h("span", { class: k === phase ? "now" : k < phase ? "done" : "" }, `${name}${k === phase && share ? ` ${share}` : ""}`)),
    h("progress", { max: job.total || 1, value: job.total ? job.done : 0, "aria-label": job.title }), job.seconds_left ? `about ${job.seconds_left} s` : null,
    h("button", { onclick: guarded(() => api.send(`/api/v1/jobs/${job.id}/stop`)) }, "Cancel"));
}

function compared(result) {
  if (!result) return null;
  const parts = [typeof result.recall === "number" ? `recall against exact ${result.recall.toFixed(3)}` : "", typeof result.agreement === "number" ? `agreement of the top 10 with the old model ${Math.round(100 * result.agreement)} %` : ""].filter(Boolean);
  return parts.length ? h("small", null, parts.join(" · ")) : null;
}

async function drawKeys(place) {
  const { keys, required } = await api.fresh("/api/v1/keys");
  const name = h("input", { type: "text", "aria-label": "Name of the new key", placeholder: "for example laptop", maxlength: 60 });
  const rights = h("select", { "aria-label": "Rights" }, h("option", { value: "read" }, "read"), h("option", { value: "write" }, "write"));
  const add = guarded(async () => {
    if (!name.value.trim()) return name.focus();
    const made = await api.send("/api/v1/keys", { name: name.value.trim(), rights: rights.value });
    dialog("New key", h("p", null, "Copy it now; it is not shown again."), h("p", { class: "secret" }, h("code", null, made.key)),
      row(h("button", { class: "main", onclick: () => navigator.clipboard?.writeText(made.key).then(() => toast("Key copied.")) }, "Copy")));
    drawKeys(place);
  });
  fill(place, h("h2", { id: "s-keys" }, "Keys"), h("p", null, required ? "Everybody needs a key here." : "Nobody needs a key on this machine; one is needed from elsewhere once a key exists."),
    h("ul", { class: "rows" }, keys.map((key) => h("li", { class: "row" }, h("bdi", null, key.name), h("small", null, `${key.rights} · ${key.used ? `used ${minute(key.used)}` : "never used"}`), h("span", { class: "grow" }),
      h("button", { onclick: guarded(async () => { if (await confirm("Revoke a key", `Revoke ${key.name}? Whoever uses it is locked out at once.`, "Revoke")) { await api.send(`/api/v1/keys/${encodeURIComponent(key.id)}`, null, "DELETE"); drawKeys(place); } }) }, "Revoke")))),
    row(name, rights, h("button", { class: "main", onclick: add }, "New key")));
}

/** Choices that are kept in this browser. */
function reader() {
  const pick = (setting, name, options) => h("label", { class: "row" }, h("span", { class: "label" }, name),
    h("select", { onchange: (event) => choose(setting, event.target.value) }, options.map((option) => h("option", { value: option, selected: choice(setting) === option }, option))));
  return h("section", { class: "panel", "aria-labelledby": "s-page" }, h("h2", { id: "s-page" }, "This page"), pick("theme", "Theme", ["auto", "light", "dark"]), pick("letter-keys", "Letter keys", ["on", "off"]),
    pick("caption", "Caption", ["label", "date", "file"]));
}
