// What can be done with selected images: search by them, tag, export, move.

import * as api from "../api.js";
import { dialog } from "../components/dialogs.js";
import { actionButton, fill, h, icon, plural, row, toast, withErrorToast } from "../dom.js";
import { navigate, urlFor } from "../router.js";
import { canWrite, getState, setState } from "../store.js";
import { notMoved, receipt } from "./bulk_move.js";

/**
 * The bar of a selection.
 * @param {{selected: () => any, count: () => number, items: () => Promise<any[]>, folders: () => string[],
 *          clear: () => void, reload: (again: boolean) => Promise<void>}} options
 */
export function selectionBar({ selected, count, items, folders, clear, reload }) {
  const words = h("strong", { role: "status" });
  const most = () => getState("info").limits.examples;
  /** Run an action; a selection of before a change is loaded again. */
  const act = (run) =>
    withErrorToast(async () => {
      try {
        await run();
      } catch (error) {
        if (error.status === 409) await reload(true);
        throw error;
      }
    });
  const search = actionButton(
    [icon("like"), h("span", "Search", h("span.wide", " by these"))],
    act(async () => {
      const ids = (await items()).map((one) => one.id);
      navigate(urlFor(ids.length === 1 ? { like: ids[0] } : { more: ids }));
    }),
    ".main",
  );
  search.setAttribute("aria-label", "Search by these");
  const tag = act(() => tagDialog(selected, count(), reload));
  const node = h(
    "div.selection-bar",
    { role: "region", "aria-label": "Selection", hidden: true },
    words,
    search,
    canWrite() ? h("button", { onclick: tag }, "Tag ", h("kbd", "t")) : null,
    h("button", { onclick: act(() => download(selected(), "csv")) }, "CSV"),
    h("button", { onclick: act(() => download(selected(), "list")) }, "File list"),
    canWrite() ? h("button", { onclick: act(() => moveDialog(selected, count(), folders())) }, "Move…") : null,
    h("button.quiet", { onclick: clear }, "Clear ", h("kbd", "Esc")),
  );
  return {
    node,
    tag,
    update() {
      words.textContent = `${plural(count(), "image")} selected`;
      node.hidden = !count();
      search.disabled = count() > most();
      search.title = count() > most() ? `At most ${most()} images can be searched by together` : "";
    },
  };
}

/** Save a selection as a file. @param {any} selection @param {"csv" | "list"} format */
async function download(selection, format) {
  const text = await api.sendForText("browse/export", { ...selection, format });
  const address = URL.createObjectURL(new Blob([text]));
  h("a", { href: address, download: format === "csv" ? "images.csv" : "images.txt" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

async function tagDialog(selected, number, reload) {
  const { column, tags } = await api.getFresh("tags");
  const field = h("input", { type: "text", "aria-label": "Tag", placeholder: "a new tag", maxlength: 60 });
  const change = async (body, message) => {
    await api.send("browse/tags", { ...selected(), ...body });
    node.close();
    api.clearCache();
    setState({ info: await api.getFresh("info") }); // tags are a column now
    await reload(true);
    toast(message);
  };
  const add = (name) => change({ add: [name] }, `Tagged ${plural(number, "image")}: ${name}.`);
  const form = h(
    "form.row",
    {
      onsubmit: (event) => {
        event.preventDefault();
        if (field.value.trim()) withErrorToast(add)(field.value.trim());
      },
    },
    field,
    h("button", { type: "submit", class: "main" }, "Add"),
  );
  const list = h(
    "ul.rows",
    tags.map((name) =>
      h(
        "li.row",
        h("bdi", name),
        h("span.grow"),
        actionButton("Add", () => add(name)),
        actionButton("Remove", () => change({ remove: [name] }, `Removed from ${plural(number, "image")}: ${name}.`)),
      ),
    ),
  );
  const node = dialog(
    `Tags of ${plural(number, "image")}`,
    form,
    h("div.scroll", list),
    h("p.hint", "Tags are a column to filter by: ", h("code", `${column}=beach`), " on the command line, too."),
  );
  field.focus();
}

async function moveDialog(selected, number, folders) {
  const field = h("input", {
    type: "text",
    "aria-label": "Folder",
    placeholder: "for example 2024/holiday",
    list: "folders",
    maxlength: 500,
  });
  const options = h("datalist", { id: "folders" });
  fill(
    options,
    folders.slice(0, 500).map((name) => h("option", { value: name })),
  );
  const go = withErrorToast(async () => {
    if (!field.value.trim()) return field.focus();
    const batch = await api.send("browse/move", { ...selected(), folder: field.value.trim() });
    node.close();
    if (batch.files) receipt(batch, async () => {});
    else toast(`Nothing was moved${notMoved(batch)}.`);
  });
  const form = h(
    "form",
    {
      onsubmit: (event) => {
        event.preventDefault();
        go();
      },
    },
    row(field, options, h("button", { type: "submit", class: "main" }, `Move ${plural(number, "file")}`)),
  );
  const node = dialog(
    "Move to a folder",
    h("p", "The files move to a folder of this collection; it is made if it does not exist. Nothing is overwritten."),
    form,
  );
  field.focus();
}
