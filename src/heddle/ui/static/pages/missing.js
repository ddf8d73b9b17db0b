// An address that leads nowhere.
import { h } from "../lib/dom.js";
import { empty } from "../lib/panels.js";
import { page, title } from "../lib/parts.js";
import { siteLink } from "../lib/router.js";

/** A page that says so, with the way back. */
export default function Missing() {
  title("Not found");
  return page({ title: "Not found" }, empty({
    title: "Page not found", text: "The address may be mistyped, or the page was deleted.",
    action: h("a.button", { href: siteLink("/") }, "All projects"),
  }));
}
