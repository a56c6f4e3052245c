// Copy the link to the current view.

import { h, toast } from "../dom.js";
import { currentIndex, shareUrl } from "../router.js";
import { getState } from "../store.js";
import { dialog } from "./dialogs.js";

export async function copyLink() {
  const link = shareUrl(currentIndex() || getState("info").index.name);
  try {
    await navigator.clipboard.writeText(link);
    toast("Link copied.");
  } catch {
    // The clipboard needs HTTPS or localhost: show the link to copy by hand.
    dialog("Link", h("p.secret", h("code", link)));
  }
}
