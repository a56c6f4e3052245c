// Query images from the user: dropped, pasted or chosen, and those still held by this tab.

import { toast } from "../dom.js";

/** @param {(file: File) => void} take */
export function watchDropAndPaste(take) {
  const veil = document.getElementById("drop");
  let depth = 0;
  /** Search by the first image file; whether there was one. */
  const first = (data) => {
    const files = [...(data?.files ?? [])];
    const file = files.find((f) => f.type.startsWith("image/")) ?? files[0];
    if (files.length > 1)
      toast(`One image at a time: searching by ${file.name}, not by the other ${files.length - 1}.`);
    if (file) take(file);
    return Boolean(file);
  };
  const carries = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  const show = (on) => veil?.toggleAttribute("hidden", !on);
  addEventListener("dragenter", (event) => carries(event) && ++depth && show(true));
  addEventListener("dragleave", () => {
    depth = Math.max(depth - 1, 0);
    if (!depth) show(false);
  });
  addEventListener("dragover", (event) => carries(event) && event.preventDefault());
  addEventListener("drop", (event) => {
    depth = 0;
    show(false);
    event.preventDefault();
    if (!first(event.dataTransfer)) toast("Drop an image file; links are not supported.");
  });
  addEventListener("paste", (event) => {
    if (event.target instanceof HTMLInputElement) return;
    if (first(event.clipboardData)) event.preventDefault();
    else if (event.clipboardData?.getData("text"))
      toast("There is no image on the clipboard; links are not supported.");
  });
}

/** Open the file chooser. @param {(file: File) => void} take */
export function chooseFile(take) {
  const input = document.createElement("input");
  input.type = "file";
  input.accept = "image/*,.heic,.heif";
  input.addEventListener("change", () => input.files?.[0] && take(input.files[0]));
  input.click();
}

/**
 * Images chosen in this tab by their query ids, the latest last.
 * @type {Map<string, {file: File, preview: string}>}
 */
export const localImages = new Map();
const MAX_IMAGES = 4;

function release(name) {
  if (localImages.has(name)) URL.revokeObjectURL(localImages.get(name).preview);
  localImages.delete(name);
}

/** Hold an image that has no query id yet; the oldest one is released. @param {File} file */
export function addPending(file) {
  release("pending");
  if (localImages.size === MAX_IMAGES) release(localImages.keys().next().value);
  localImages.set("pending", { file, preview: URL.createObjectURL(file) });
}

/** Give the pending image its query id. @param {string} name */
export function namePending(name) {
  localImages.set(name, localImages.get("pending"));
  localImages.delete("pending");
}
