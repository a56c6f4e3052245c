// The model in use and the change to another, keys, and the reader's own choices.

import * as api from "../api.js";
import { action, count, fill, h, minute, row, text, toast } from "../dom.js";
import { confirm, dialog } from "../parts/dialogs.js";
import { choice, choose, on, value, writes } from "../store.js";
import { more } from "./runs.js";

let ends = [];

export function leave() {
  for (const end of ends) end();
  ends = [];
}

export async function render(main) {
  leave();
  const model = h("section.panel", { "aria-labeledby": "s-model" });
  const keys = h("section.panel", { "aria-labeledby": "s-keys" });
  fill(main, h("div.screen.narrow", more("settings"), h("h1", "Settings"), model, keys, reader()));
  ends.push(api.poll("generations", (facts) => drawModel(model, facts), () => 4000));
  let seen = "";
  ends.push(on("moving", async (moving) => {
    const last = moving.jobs?.find((job) => job.kind === "switch");
    if (last && JSON.stringify(last) !== seen) { seen = JSON.stringify(last); drawModel(model, await api.fresh("generations")); }
  }));
  if (writes()) await drawKeys(keys);
  else fill(keys, h("h2", { id: "s-keys" }, "Keys"), h("p", "This key may only read; keys are made by those who may write."));
}

function drawModel(place, facts) {
  const { info, moving } = { info: value("info"), moving: value("moving") };
  const live = facts.generations.find((g) => g.live);
  const write = writes();
  const job = moving?.jobs?.find((j) => j.kind === "switch");
  const busy = job?.state === "running";
  const ece = typeof live?.ece === "number" ? ` · ECE ${live.ece.toFixed(3)}` : "";
  const select = h("select", { "aria-label": "Model to switch to" }, facts.models.filter((m) => m.name !== live?.model.name).map((m) =>
    h("option", { value: m.name }, `${m.name}${typeof m.best === "number" ? ` (${m.metric} ${m.best.toFixed(3)})` : ""}`)));
  const start = async () => { await api.send("switch", { model: select.value }); toast("Embedding beside the old index; searches go on meanwhile."); };
  const old = facts.generations.filter((g) => !g.live);
  const back = (generation) => action("Switch back", async () => { await api.send("switch", { generation }); location.reload(); });
  fill(place, h("h2", { id: "s-model" }, "Model"),
    h("p", h("strong", h("bdi", live?.model.name ?? info.model.name)), `${ece} · ${text(live?.model.fingerprint ?? info.model.fingerprint).slice(0, 4)} · ${count(live?.images ?? info.index.images, "image")}`),
    busy ? steps(job) : null,
    job?.state === "finished" && job.sentence ? h("div.banner", { role: "status" }, job.sentence, compared(job.result), write && job.result?.before !== undefined && job.result.generation === facts.live ? back(job.result.before) : null) : null,
    job?.state === "failed" ? h("div.banner.bad", { role: "alert" }, job.sentence) : null,
    write && !busy && select.options.length ? row("Switch to", select, action("Embed and compare", start, ".main")) : null,
    old.length ? h("ul.rows", old.map((g) => h("li.row", h("bdi", g.model.name), h("small", `${g.model.fingerprint.slice(0, 4)} · ${count(g.images, "image")}${g.complete ? "" : " · not finished"}`), h("span.grow"),
      write && g.complete ? back(g.number) : null,
      write ? action("Delete", async () => { if (await confirm("Delete vectors", `Delete the vectors of ${g.model.name}? The images stay.`, "Delete")) { await api.send(`generations/${g.number}`, null, "DELETE"); drawModel(place, await api.fresh("generations")); } }) : null))) : null);
}

/** Embed, compare, switch: where it is. */
function steps(job) {
  const share = job.total ? `${Math.floor((100 * job.done) / job.total)} %` : "";
  const phase = /compar/i.test(job.phase) ? 1 : 0;
  return h("div.steps", ["embed", "compare", "switch", "keep old"].map((name, k) => h("span", { class: k === phase ? "now" : k < phase ? "done" : "" }, `${name}${k === phase && share ? ` ${share}` : ""}`)),
    h("progress", { max: job.total || 1, value: job.total ? job.done : 0, "aria-label": job.title }), job.seconds_left ? `about ${job.seconds_left} s` : null,
    writes() ? action("Cancel", () => api.send(`jobs/${job.id}/stop`)) : null);
}

function compared(result) {
  if (!result) return null;
  const parts = [typeof result.recall === "number" ? `recall against exact ${result.recall.toFixed(3)}` : "", typeof result.agreement === "number" ? `agreement of the top 10 with the old model ${Math.round(100 * result.agreement)} %` : ""].filter(Boolean);
  return parts.length ? h("small", parts.join(" · ")) : null;
}

async function drawKeys(place) {
  const { keys, required } = await api.fresh("keys");
  const name = h("input", { type: "text", "aria-label": "Name of the new key", placeholder: "for example laptop", maxlength: 60 });
  const rights = h("select", { "aria-label": "Rights" }, h("option", { value: "read" }, "read"), h("option", { value: "write" }, "write"));
  const add = async () => {
    if (!name.value.trim()) return name.focus();
    const made = await api.send("keys", { name: name.value.trim(), rights: rights.value });
    dialog("New key", h("p", "Copy it now; it is not shown again."), h("p.secret", h("code", made.key)),
      row(action("Copy", () => navigator.clipboard?.writeText(made.key).then(() => toast("Key copied.")), ".main")));
    drawKeys(place);
  };
  fill(place, h("h2", { id: "s-keys" }, "Keys"), h("p", required ? "Everybody needs a key here." : "Nobody needs a key on this machine; one is needed from elsewhere once a key exists."),
    h("ul.rows", keys.map((key) => h("li.row", h("bdi", key.name), h("small", `${key.rights} · ${key.used ? `used ${minute(key.used)}` : "never used"}`), h("span.grow"),
      action("Revoke", async () => { if (await confirm("Revoke a key", `Revoke ${key.name}? Whoever uses it is locked out at once.`, "Revoke")) { await api.send(`keys/${encodeURIComponent(key.id)}`, null, "DELETE"); drawKeys(place); } })))),
    row(name, rights, action("New key", add, ".main")));
}

/** Choices that are kept in this browser. */
function reader() {
  const pick = (setting, name, options) => h("label.row", h("span.label", name),
    h("select", { onchange: (event) => choose(setting, event.target.value) }, options.map((option) => h("option", { value: option, selected: choice(setting) === option }, option))));
  return h("section.panel", { "aria-labeledby": "s-page" }, h("h2", { id: "s-page" }, "This page"), pick("theme", "Theme", ["auto", "light", "dark"]), pick("letter-keys", "Letter keys", ["on", "off"]),
    pick("caption", "Caption", ["label", "date", "file"]));
}
