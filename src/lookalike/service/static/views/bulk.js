// Many groups at once: first an overview of what stays and what goes, then one question, then a receipt.

import * as api from "../api.js";
import { action, count, fill, h, minute, row, toast } from "../dom.js";
import { confirm, dialog } from "../parts/dialogs.js";
import { read } from "../router.js";
import { writes } from "../store.js";

/** @param {number} bytes */
export function size(bytes) {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  const power = bytes < 1000 ? 0 : Math.min(Math.floor(Math.log10(bytes) / 3), 4);
  return `${(bytes / 1000 ** power).toLocaleString("en-GB", { maximumFractionDigits: power > 2 ? 1 : 0 })} ${units[power]}`;
}

/** Some groups of a kind, under the address's filters. @param {string} kind @param {number} offset @param {number} limit @param {string} prefer */
export function some(kind, offset, limit, prefer) {
  const query = new URLSearchParams([["kind", kind], ["offset", String(offset)], ["limit", String(limit)], ["prefer", prefer], ...read().f.map((f) => ["f", f])]);
  return api.fresh(`duplicates/groups?${query}`);
}

/** @param {string} kind @param {string} prefer @param {() => void} after */
export async function bulk(kind, prefer, facts, after) {
  const groups = [];
  let total = 1;
  while (groups.length < Math.min(total, 1000)) {
    const answer = await some(kind, groups.length, 200, prefer);
    total = answer.total;
    groups.push(...answer.groups);
    if (!answer.groups.length) break;
  }
  const goes = new Set(groups.flatMap((group) => group.files.filter((file) => !file.keep).map((file) => file.id)));
  const button = action("", () => move(), ".main");
  const chosen = () => groups.map((group) => ({ id: group.id, move: group.files.filter((f) => goes.has(f.id)).map((f) => f.id) })).filter((group) => group.move.length);
  const weight = () => groups.flatMap((group) => group.files).filter((file) => goes.has(file.id)).reduce((sum, file) => sum + (file.bytes ?? 0), 0);
  const tell = () => { button.textContent = `Move ${count(goes.size, "file")} (${size(weight())})`; button.toggleAttribute("disabled", !goes.size); };
  const flip = (group, file, node) => {
    if (goes.has(file.id)) goes.delete(file.id);
    else if (group.files.filter((f) => !goes.has(f.id)).length > 1) goes.add(file.id);
    else return toast("At least one image of a group stays.");
    node.className = goes.has(file.id) ? "move" : "keep";
    node.setAttribute("aria-pressed", String(!goes.has(file.id)));
    tell();
  };
  const rows = groups.map((group) => h("li", group.files.map((file) => {
    const node = h("button", { class: goes.has(file.id) ? "move" : "keep", "aria-pressed": String(!goes.has(file.id)), title: file.columns.path,
      "aria-label": `Keep ${file.columns.path}`, onclick: () => flip(group, file, node) }, h("img", { src: api.thumb(file.thumb, 96), alt: "", loading: "lazy" }));
    return node;
  }), h("small", group.reason)));
  const node = dialog("What stays and what goes", h("p", "Bright images stay, crossed ones go. A click turns one over.", total > groups.length ? ` The first ${groups.length} of ${total} groups.` : ""),
    h("ul.overview", rows), row(button, action("Cancel", () => node.close())));
  node.classList.add("large");
  tell();

  async function move() {
    const number = count(goes.size, "file");
    if (!await confirm("Move files", [`Move ${number} (${size(weight())}) to `, h("code", facts.folder), "? Nothing is deleted."], `Move ${number}`)) return;
    const batch = await api.send("duplicates/move", { groups: chosen() });
    node.close();
    receipt(batch, after);
    await after();
  }
}

/** What was not moved, and why. */
export const stayed = ({ left }) => (left?.length ? `; ${left.length} stayed: ${left[0].why}` : "");

function receipt(batch, after) {
  const place = document.getElementById("toasts");
  const note = h("div.toast", `Moved ${count(batch.files, "file")}${stayed(batch)}. `, action("Move back", async () => {
    await back(batch.id);
    note.remove();
    await after();
  }), h("button", { "aria-label": "Close", onclick: () => note.remove() }, "×"));
  place?.append(note);
}

async function back(id) {
  const answer = await api.send(`duplicates/history/${encodeURIComponent(id)}/back`);
  toast(`Moved back ${count(answer.moved, "file")}${stayed(answer)}.`);
}

/** All moves so far. @param {() => void} after */
export async function history(after) {
  const { batches } = await api.fresh("duplicates/history");
  const list = h("ul.rows");
  const node = dialog("History", list);
  fill(list, batches.length ? batches.map((batch) => h("li.row",
    h("span", `${minute(batch.when)} · ${count(batch.files, "file")} (${size(batch.bytes ?? 0)}) → `, h("bdi", batch.folder)), h("span.grow"),
    batch.state === "back" ? h("span", "moved back") : writes() ? action("Move back", async () => { await back(batch.id); node.close(); await after(); }) : null))
    : h("li", "Nothing was moved yet."));
}
