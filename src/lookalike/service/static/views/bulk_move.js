// Move the duplicates of many groups at once: overview, confirmation, receipt with undo.

import * as api from "../api.js";
import { confirm, dialog } from "../components/dialogs.js";
import { actionButton, fill, formatTime, h, plural, row, toast } from "../dom.js";
import { readUrl } from "../router.js";
import { canWrite } from "../store.js";

/** @param {number} bytes */
export function formatBytes(bytes) {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  const power = bytes < 1000 ? 0 : Math.min(Math.floor(Math.log10(bytes) / 3), 4);
  const value = (bytes / 1000 ** power).toLocaleString("en-US", { maximumFractionDigits: power > 2 ? 1 : 0 });
  return `${value} ${units[power]}`;
}

/**
 * Fetch groups of a kind under the current filters.
 * @param {string} kind @param {number} offset @param {number} limit @param {string} prefer
 */
export function fetchGroups(kind, offset, limit, prefer) {
  const query = new URLSearchParams([
    ["kind", kind],
    ["offset", String(offset)],
    ["limit", String(limit)],
    ["prefer", prefer],
    ...readUrl().f.map((f) => ["f", f]),
  ]);
  return api.getFresh(`duplicates/groups?${query}`);
}

/** @param {string} kind @param {string} prefer @param {() => void} after */
export async function bulkMove(kind, prefer, facts, after) {
  const groups = [];
  let total = 1;
  while (groups.length < Math.min(total, 1000)) {
    const answer = await fetchGroups(kind, groups.length, 200, prefer);
    total = answer.total;
    groups.push(...answer.groups);
    if (!answer.groups.length) break;
  }
  const goes = new Set(groups.flatMap((group) => group.files.filter((file) => !file.keep).map((file) => file.id)));
  const button = actionButton("", () => move(), ".main");
  const chosen = () =>
    groups
      .map((group) => ({ id: group.id, move: group.files.filter((f) => goes.has(f.id)).map((f) => f.id) }))
      .filter((group) => group.move.length);
  const weight = () =>
    groups
      .flatMap((group) => group.files)
      .filter((file) => goes.has(file.id))
      .reduce((sum, file) => sum + (file.bytes ?? 0), 0);
  const tell = () => {
    button.textContent = `Move ${plural(goes.size, "file")} (${formatBytes(weight())})`;
    button.toggleAttribute("disabled", !goes.size);
  };
  const flip = (group, file, node) => {
    if (goes.has(file.id)) goes.delete(file.id);
    else if (group.files.filter((f) => !goes.has(f.id)).length > 1) goes.add(file.id);
    else return toast("At least one image of a group stays.");
    node.className = goes.has(file.id) ? "move" : "keep";
    node.setAttribute("aria-pressed", String(!goes.has(file.id)));
    tell();
  };
  const rows = groups.map((group) =>
    h(
      "li",
      group.files.map((file) => {
        const node = h(
          "button",
          {
            class: goes.has(file.id) ? "move" : "keep",
            "aria-pressed": String(!goes.has(file.id)),
            title: file.columns.path,
            "aria-label": `Keep ${file.columns.path}`,
            onclick: () => flip(group, file, node),
          },
          h("img", { src: api.thumbUrl(file.thumb, 96), alt: "", loading: "lazy" }),
        );
        return node;
      }),
      h("small", group.reason),
    ),
  );
  const node = dialog(
    "Files to keep and to move",
    h(
      "p",
      "Bright images are kept, crossed-out ones are moved. Click an image to change it.",
      total > groups.length ? ` The first ${groups.length} of ${total} groups.` : "",
    ),
    h("ul.overview", rows),
    row(
      button,
      actionButton("Cancel", () => node.close()),
    ),
  );
  node.classList.add("large");
  tell();

  async function move() {
    const number = plural(goes.size, "file");
    if (
      !(await confirm(
        "Move files",
        [`Move ${number} (${formatBytes(weight())}) to `, h("code", facts.folder), "? Nothing is deleted."],
        `Move ${number}`,
      ))
    )
      return;
    const batch = await api.send("duplicates/move", { groups: chosen() });
    node.close();
    receipt(batch, after);
    await after();
  }
}

/** A note on files that were not moved. */
export const notMoved = ({ left }) => (left?.length ? `; ${left.length} stayed: ${left[0].why}` : "");

/** Say what was moved, with a way back. */
export function receipt(batch, after) {
  const place = document.getElementById("toasts");
  const note = h(
    "div.toast",
    `Moved ${plural(batch.files, "file")}${notMoved(batch)}. `,
    actionButton("Move back", async () => {
      await undoMove(batch.id);
      note.remove();
      await after();
    }),
    h("button", { "aria-label": "Close", onclick: () => note.remove() }, "×"),
  );
  place?.append(note);
}

async function undoMove(id) {
  const answer = await api.send(`duplicates/history/${encodeURIComponent(id)}/undo`);
  toast(`Moved back ${plural(answer.moved, "file")}${notMoved(answer)}.`);
}

/** Show all moves so far. @param {() => void} after */
export async function moveHistory(after) {
  const { batches } = await api.getFresh("duplicates/history");
  const list = h("ul.rows");
  const node = dialog("History", list);
  fill(
    list,
    batches.length
      ? batches.map((batch) =>
          h(
            "li.row",
            h(
              "span",
              `${formatTime(batch.when)} · ${plural(batch.files, "file")} (${formatBytes(batch.bytes ?? 0)}) → `,
              h("bdi", batch.folder),
            ),
            h("span.grow"),
            batch.state === "back"
              ? h("span", "moved back")
              : canWrite()
                ? actionButton("Move back", async () => {
                    await undoMove(batch.id);
                    node.close();
                    await after();
                  })
                : null,
          ),
        )
      : h("li", "Nothing has been moved yet."),
  );
}
