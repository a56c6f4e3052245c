// Dialogs: the common frame, keyboard shortcuts, confirmation, and the key of a locked server.

import { messageOf, send } from "../api.js";
import { actionButton, fill, h, iconButton } from "../dom.js";
import { preference, setPreference } from "../store.js";

/** @param {string} title @param {...any} content @returns {any} */
export function dialog(title, ...content) {
  const close = iconButton("close", "Close", () => node.close(), { class: "quiet icon" });
  const before = document.activeElement;
  const node = h(
    "dialog",
    {
      "aria-label": title,
      onclose: () => {
        node.remove();
        if (before instanceof HTMLElement) before.focus({ preventScroll: true });
      },
    },
    h("div.inside", h("div.head", h("h2", title), close), content),
  );
  node.addEventListener("click", (event) => event.target === node && node.close());
  document.body.append(node);
  node.showModal();
  return node;
}

const GLOBAL_KEYS = [
  ["g s b m d r", "search, browse, map, duplicates, reports"],
  ["Ctrl V", "search by the image on the clipboard"],
  ["/", "focus the text field, or choose an image"],
  ["y", "copy the link to what you see"],
  ["u Ctrl Z", "undo"],
  ["Esc", "close"],
  ["?", "these keys"],
];
const SCREEN_KEYS = {
  search: [
    ["Arrows", "move between images"],
    ["Enter", "open an image beside yours"],
    ["m", "more like this"],
    ["+ −", "more like this too, less like this"],
    ["c", "crop"],
    ["f", "filters"],
    ["[ ]", "smaller, larger images"],
    ["← → Space", "opened: next, swap the two"],
  ],
  browse: [
    ["Arrows", "move between images"],
    ["Space", "select or deselect; with Shift and arrows a range"],
    ["a", "select all"],
    ["Enter", "search by the image"],
    ["t", "tag what is selected"],
    ["f", "filters"],
    ["[ ]", "smaller, larger images"],
    ["Esc", "select nothing"],
  ],
  map: [
    ["Arrows", "move"],
    ["+ −", "zoom in, zoom out"],
    ["0", "show all"],
    ["m", "search by the image of the card"],
    ["f", "filters"],
    ["Shift drag", "select a region"],
    ["Tab", "places, then images near the middle"],
  ],
  duplicates: [
    ["1–9", "keep or move an image"],
    ["Enter", "accept and go on"],
    ["x", "these are not duplicates"],
    ["← →", "previous, next group"],
    ["Space", "swap two in place"],
    ["z", "zoom all at the same spot; there ← → change the image"],
    ["u", "undo"],
  ],
};

/** @param {string} screen */
export function help(screen) {
  const box = h("input", {
    type: "checkbox",
    checked: preference("letter-keys") !== "off",
    onchange: (event) => setPreference("letter-keys", event.target.checked ? "on" : "off"),
  });
  const table = (rows) =>
    h(
      "div.keys",
      rows.map(([key, what]) => [h("kbd", key), h("span", what)]),
    );
  dialog(
    "Keys",
    SCREEN_KEYS[screen] ? table(SCREEN_KEYS[screen]) : null,
    h("h3", "Everywhere"),
    table(GLOBAL_KEYS),
    h("label.row", box, "Letter keys"),
  );
}

/** Ask for confirmation. @param {string} title @param {string} yes @returns {Promise<boolean>} */
export function confirm(title, words, yes) {
  return new Promise((answer) => {
    const node = dialog(
      title,
      h("p", words),
      h(
        "div.row",
        h(
          "button.main",
          {
            onclick: () => {
              answer(true);
              node.close();
            },
          },
          yes,
        ),
        actionButton("Cancel", () => node.close()),
      ),
    );
    node.addEventListener("close", () => answer(false));
  });
}

let keyDialogOpen = false;
/** Ask for a key and exchange it for a session cookie that scripts cannot read. */
export function askForKey() {
  if (keyDialogOpen) return;
  keyDialogOpen = true;
  const refused = h("p.bad", { role: "alert" });
  const field = h("input", {
    type: "password",
    autocomplete: "off",
    "aria-label": "Key",
    required: true,
    autofocus: true,
  });
  const form = h(
    "form.row",
    {
      onsubmit: async (event) => {
        event.preventDefault();
        try {
          await send("session", { key: field.value.trim() });
          location.reload();
        } catch (error) {
          fill(refused, messageOf(error));
        }
      },
    },
    field,
    h("button", { type: "submit", class: "main" }, "Unlock"),
  );
  const node = dialog(
    "Locked",
    h("p", "This server requires a key. It is remembered until you close the browser."),
    form,
    refused,
  );
  node.addEventListener("close", () => {
    keyDialogOpen = false;
  });
}
