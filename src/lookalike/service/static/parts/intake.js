// How a picture gets in: dropped anywhere, pasted anywhere, or chosen.

import { toast } from "../dom.js";

/** @param {(file: File) => void} take */
export function watch(take) {
  const veil = document.getElementById("drop");
  let depth = 0;
  const carries = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  const show = (on) => veil && (veil.hidden = !on);
  addEventListener("dragenter", (event) => carries(event) && ++depth && show(true));
  addEventListener("dragleave", () => (depth = Math.max(depth - 1, 0)) || show(false));
  addEventListener("dragover", (event) => carries(event) && event.preventDefault());
  addEventListener("drop", (event) => {
    depth = 0;
    show(false);
    event.preventDefault();
    const file = event.dataTransfer?.files[0];
    if (file) take(file);
    else toast("Drop a picture file; addresses are not fetched.");
  });
  addEventListener("paste", (event) => {
    if (event.target instanceof HTMLInputElement) return;
    const files = [...(event.clipboardData?.files ?? [])];
    const file = files.find((f) => f.type.startsWith("image/")) ?? files[0];
    if (file) {
      event.preventDefault();
      take(file);
    } else if (event.clipboardData?.getData("text")) {
      toast("There is no picture on the clipboard; addresses are not fetched.");
    }
  });
}

/** Open the file chooser. @param {(file: File) => void} take */
export function choose(take) {
  const input = document.createElement("input");
  input.type = "file";
  input.accept = "image/*";
  input.addEventListener("change", () => input.files?.[0] && take(input.files[0]));
  input.click();
}
