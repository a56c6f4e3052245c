// How an image gets in: dropped anywhere, pasted anywhere, or chosen; and those that are still in hand.

import { toast } from "../dom.js";

/** @param {(file: File) => void} take */
export function watch(take) {
  const veil = document.getElementById("drop");
  let depth = 0;
  /** Whether there was a file to take. */
  const first = (data) => {
    const files = [...(data?.files ?? [])];
    const file = files.find((f) => f.type.startsWith("image/")) ?? files[0];
    if (files.length > 1) toast(`One image at a time: searching by ${file.name}, not by the other ${files.length - 1}.`);
    if (file) take(file);
    return Boolean(file);
  };
  const carries = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  const show = (on) => veil && (veil.hidden = !on);
  addEventListener("dragenter", (event) => carries(event) && ++depth && show(true));
  addEventListener("dragleave", () => (depth = Math.max(depth - 1, 0)) || show(false));
  addEventListener("dragover", (event) => carries(event) && event.preventDefault());
  addEventListener("drop", (event) => {
    depth = 0;
    show(false);
    event.preventDefault();
    if (!first(event.dataTransfer)) toast("Drop an image file; addresses are not fetched.");
  });
  addEventListener("paste", (event) => {
    if (event.target instanceof HTMLInputElement) return;
    if (first(event.clipboardData)) event.preventDefault();
    else if (event.clipboardData?.getData("text")) toast("There is no image on the clipboard; addresses are not fetched.");
  });
}

/** Open the file chooser. @param {(file: File) => void} take */
export function choose(take) {
  const input = document.createElement("input");
  input.type = "file";
  input.accept = "image/*,.heic,.heif";
  input.addEventListener("change", () => input.files?.[0] && take(input.files[0]));
  input.click();
}

/** Images given in this tab by their names in the address, the latest last. @type {Map<string, {file: File, preview: string}>} */
export const hand = new Map();
const MOST = 4;

function drop(name) {
  if (hand.has(name)) URL.revokeObjectURL(hand.get(name).preview);
  hand.delete(name);
}

/** Take an image that has no name yet; the oldest is let go. @param {File} file */
export function hold(file) {
  drop("pending");
  if (hand.size === MOST) drop(hand.keys().next().value);
  hand.set("pending", { file, preview: URL.createObjectURL(file) });
}

/** @param {string} name */
export function call(name) {
  hand.set(name, hand.get("pending"));
  hand.delete("pending");
}
