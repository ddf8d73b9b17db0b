// One version of an object or an op next to the list of all versions.
import { h } from "../lib/dom.js";
import { postProject } from "../lib/data.js";
import { loaded } from "../lib/parts.js";
import { here, link, path, query, setQuery } from "../lib/router.js";
import { versionRail } from "../lib/versions.js";

/** A version by its name and digest, as it is stored. */
export async function readVersion(name, digest, abort) {
  return (await postProject("/obj/read", { object_id: name, digest }, abort)).obj;
}

/**
 * The list of versions and, next to it, `content`; `room` is "objects" or "ops", `note` adds details of a version.
 * @param {{room: string, name: string, versions: any, listed: import("../lib/dom.js").Signal<any[]>,
 *   chosen: import("../lib/dom.js").Signal<any>, content: any, note?: (entry: any) => any}} options
 */
export function besideVersions({ room, name, versions, listed, chosen, content, note }) {
  const rail = () => versionRail({
    versions: listed.value,
    current: () => chosen.value,
    href: ({ digest }) => link(`/${room}${path`/${name}/versions/${digest}`}`, Object.fromEntries(here.peek().searchParams)),
    compared: () => query("with"),
    oncompare: (digest) => setQuery({ with: digest, tab: digest ? "diff" : null }, false),
    onchange: versions.reload,
    ...(note ? { note } : {}),
  });
  return loaded(versions, () => h("div.versioned", () => listed.value.length > 0 && rail(),
    h("div.versionbody", { tabindex: 0, role: "region", "aria-label": "Version" }, content)));
}
