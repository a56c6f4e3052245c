// The link to what is seen, for somebody else.

import { h, toast } from "../dom.js";
import { shared } from "../router.js";
import { value } from "../store.js";
import { dialog } from "./dialogs.js";

export async function copyLink() {
  const link = shared(value("info").index.name);
  try {
    await navigator.clipboard.writeText(link);
    toast("Link copied.");
  } catch {
    // No clipboard here (it needs https or this machine): it can be copied by hand.
    dialog("Link", h("p.secret", h("code", link)));
  }
}
