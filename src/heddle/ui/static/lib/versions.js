// The versions of an object or op next to their content: newest first, with tags and aliases that can be changed.
import { send } from "./data.js";
import { attempt, form } from "./dialog.js";
import { h, signal } from "./dom.js";
import { ago, exact } from "./format.js";
import { button, chip, icon } from "./parts.js";
import { projectId } from "./router.js";

const MOST = 5000;
const SHOWN = 100;

/** What to ask for to get the versions of an object by name: a description for `resource`. */
export const versionsOf = (name, isOp = false) => [
  "/objs/query",
  {
    filter: { object_ids: [name], is_op: isOp },
    metadata_only: true,
    include_tags_and_aliases: true,
    limit: MOST,
    sort_by: [{ field: "created_at", direction: "desc" }],
  },
];

/** The version that a part of an address names (digest, "latest", "v3", an alias or a tag), or null. */
export function findVersion(versions, wanted) {
  const byNumber = /^v(\d+)$/.exec(wanted)?.[1];
  return (
    versions.find(({ digest }) => digest === wanted) ??
    versions.find((version) => (wanted === "latest" ? version.is_latest : version.aliases?.includes(wanted))) ??
    (byNumber ? versions.find((version) => version.version_index === Number(byNumber)) : null) ??
    versions.find((version) => version.tags?.includes(wanted)) ??
    null
  );
}

/**
 * The list of versions. `current()` is the digest that is open; `href(version)` is the address of one; `compared()` is the
 * digest that it is compared with and `oncompare(digest | null)` chooses it; `onchange()` follows a change of tags.
 * The page's style sheet begins with `@import "../lib/versions.css";`.
 * @param {{versions: any[], current: () => string, href: (version: any) => string, compared: () => string|null,
 *   oncompare: (digest: string|null) => void, onchange: () => void, note?: (version: any) => any}} options
 */
export function versionRail({ versions, current, href, compared, oncompare, onchange, note = () => null }) {
  const most = signal(Math.max(SHOWN, versions.findIndex(({ digest }) => digest === current()) + 1));
  const left = () => versions.length - most.value;
  return h(
    "nav.versions",
    { "aria-label": "Versions" },
    h("h2", "Versions", h("span.count", versions.length)),
    h("ol", () =>
      versions.slice(0, most.value).map((version) =>
        h(
          "li",
          {
            class: () => (version.digest === current() ? "open" : version.digest === compared() ? "compared" : ""),
            ref: (element) =>
              version.digest === current() && requestAnimationFrame(() => element.scrollIntoView({ block: "nearest" })),
          },
          h(
            "a.version",
            { href: href(version), title: version.digest, "aria-current": () => (version.digest === current() ? "true" : null) },
            h("b", `v${version.version_index}`),
            version.is_latest ? h("span.badge.good", "latest") : null,
            h("span.grow"),
            h("small", { title: exact(version.created_at) }, ago(version.created_at)),
          ),
          h(
            "div.versionnote",
            h("span.one-line", version.wb_user_id || version.digest.slice(0, 8)),
            note(version),
            h("span.grow"),
            () => (version.digest === current() ? null : compareButton(version, compared, oncompare)),
          ),
          labels(version, current, onchange),
        ),
      ),
    ),
    () =>
      left() > 0
        ? button(
            `Show ${Math.min(left(), SHOWN)} more of ${left()}`,
            () => {
              most.value += SHOWN;
            },
            { kind: "quiet" },
          )
        : null,
  );
}

function compareButton(version, compared, oncompare) {
  const isOn = () => compared() === version.digest;
  return h(
    "button.comparebutton",
    {
      type: "button",
      "aria-pressed": () => String(isOn()),
      "aria-label": `Compare with v${version.version_index}`,
      onclick: () => oncompare(isOn() ? null : version.digest),
    },
    icon("columns"),
    "Compare",
  );
}

function labels(version, current, onchange) {
  const change = (action) => attempt(action).then((done) => done !== undefined && onchange());
  const own = (version.aliases ?? []).filter((name) => name !== "latest");
  const tags = version.tags ?? [];
  return h("div.labels", () =>
    own.length || tags.length || version.digest === current()
      ? [
          own.map((name) => chip(name, () => change(() => removeAlias(version, name)), { title: `Alias ${name}`, needs: "write" })),
          tags.map((name) => chip(name, () => change(() => removeTag(version, name)), { class: "plain", title: `Tag ${name}`, needs: "write" })),
          version.digest === current()
            ? [adder("Tag", version, "tags", onchange), adder("Alias", version, "aliases", onchange)]
            : null,
        ]
      : null,
  );
}

function adder(label, version, kind, onchange) {
  return button(
    label,
    async () => {
      const isTag = kind === "tags";
      const done = await form(
        `${label} for ${version.object_id} v${version.version_index}`,
        [
          {
            name: "name",
            label,
            required: true,
            autofocus: true,
            hint: isTag
              ? "A word that describes this version; several versions can have it."
              : "A name for this version alone; it moves here from wherever it was.",
          },
        ],
        { action: "Add", submit: ({ name }) => (isTag ? addTag(version, name.trim()) : setAlias(version, name.trim())) },
      );
      if (done) onchange();
    },
    { kind: "quiet", iconName: "add", needs: "write", label: `Add ${label.toLowerCase()}`, "aria-label": `Add ${label.toLowerCase()}` },
  );
}

const place = (version) => `/objs/${encodeURIComponent(version.object_id)}`;
const versionPlace = (version) => `${place(version)}/versions/${encodeURIComponent(version.digest)}`;
const addTag = (version, name) => send("PUT", `${versionPlace(version)}/tags`, { project_id: projectId(), tags: [name] });
const removeTag = (version, name) =>
  send("POST", `${versionPlace(version)}/tags/remove`, { project_id: projectId(), tags: [name] });
const setAlias = (version, name) =>
  send("PUT", `${place(version)}/aliases`, { project_id: projectId(), digest: version.digest, aliases: [name] });
const removeAlias = (version, name) =>
  send("POST", `${place(version)}/aliases/remove`, { project_id: projectId(), aliases: [name] });
