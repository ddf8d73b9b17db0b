// One version of an object: its value, what differs from another version, the calls that used it.
import { computed, h } from "../lib/dom.js";
import { resource } from "../lib/data.js";
import { menu } from "../lib/dialog.js";
import { bytes } from "../lib/format.js";
import { rawJson } from "../lib/json.js";
import { valueSection } from "../lib/value.js";
import { codeBlock, copyButton, facts, tabs } from "../lib/panels.js";
import { header, loaded, timeNode, title } from "../lib/parts.js";
import { go, link, projectId, query } from "../lib/router.js";
import { serverAddress } from "../lib/setup.js";
import { findVersion, versionsOf } from "../lib/versions.js";
import { actionsOf, referenceOf } from "./object_actions.js";
import { filesOf, filesView } from "./object_code.js";
import { besideVersions, readVersion } from "./object_versions.js";
import { changesView } from "./object_diff.js";
import { isPrompt, promptView } from "./object_prompt.js";
import { callsView } from "./object_calls.js";

const OWN_PAGES = { Dataset: "/datasets", Leaderboard: "/leaderboards" };

/** The page with more about objects of a class. */
const ROOMS = {
  Model: (name) => h("a.button", { href: link("/evaluations", { q: name }) }, "Evaluations"),
  Evaluation: (name) => h("a.button", { href: link("/evaluations", { evaluation: name }) }, "Runs"),
  Scorer: (name) => h("a.button", { href: link("/scorers", { q: name }) }, "Scorers"),
  Monitor: () => h("a.button", { href: link("/scorers") }, "Scorers and monitors"),
};

/** The page of one version; `version` is a digest, "latest", "v3", an alias or a tag. */
export default function ObjectPage({ name, version }) {
  title(name);
  const versions = resource(() => versionsOf(name));
  const listed = computed(() =>
    [...(versions.data.value?.objs ?? [])].sort((one, other) => other.version_index - one.version_index),
  );
  const chosen = computed(() => findVersion(listed.value, version)?.digest ?? version);
  const state = resource(
    () => (versions.data.value ? [name, chosen.value] : null),
    ([id, digest], abort) => readVersion(id, digest, abort),
  );
  const object = computed(() => state.data.value);
  const reload = () => {
    versions.reload();
    state.reload();
  };
  return h(
    "div.page",
    header({
      crumbs: [["Prompts & objects", link("/objects")]],
      title: h("span", { title: name, dir: "auto" }, name),
      extra: () =>
        object.value
          ? [
              h("span.badge.good", `v${object.value.version_index}`),
              object.value.base_object_class && h("span.badge", object.value.leaf_object_class ?? object.value.base_object_class),
            ]
          : null,
      actions: () => (object.value ? actions(object.value, listed.value, reload) : null),
    }),
    besideVersions({
      room: "objects",
      name,
      versions,
      listed,
      chosen,
      content: loaded(state, (found) => (leaves(found) ? null : body(found, listed))),
    }),
  );
}

/** Datasets and leaderboards have separate pages: links that SDKs print lead there. */
function leaves(object) {
  const place = OWN_PAGES[object.base_object_class];
  if (!place || query("as") === "object") return false;
  queueMicrotask(() => go(link(`${place}/${encodeURIComponent(object.object_id)}`, { v: object.digest }), true));
  return true;
}

function actions(object, listed, reload) {
  const reference = referenceOf(object);
  return [
    isPrompt(object.val) && h("a.button.primary", { href: link("/playground", { prompt: reference }) }, "Open in playground"),
    ROOMS[object.base_object_class]?.(object.object_id),
    copyButton(() => reference, "Copy reference", "Copy ref"),
    menu(null, () => actionsOf(object, listed, reload), { kind: "quiet", label: "More" }),
  ];
}

function body(object, listed) {
  const files = filesOf(object.val);
  const others = () => listed.value.filter(({ digest }) => digest !== object.digest);
  const entries = [
    files.length
      ? ["value", "Code", () => filesView(files)]
      : ["value", isPrompt(object.val) ? "Prompt" : "Value", () => valueView(object)],
    others().length || query("with") ? ["diff", "Changes", () => changesView(object, listed, readVersion)] : null,
    ["calls", "Calls", () => callsView({ input_refs: [referenceOf(object)] }, "No call has used this version as an input yet.")],
    ["use", "Use", () => useView(object)],
    ["raw", "Raw", () => rawJson(object.val)],
  ].filter(Boolean);
  return [factsOf(object), ...tabs("What is shown", entries)];
}

function factsOf(object) {
  return facts([
    ["Created", timeNode(object.created_at)],
    ["By", object.wb_user_id],
    ["Size", bytes(JSON.stringify(object.val).length)],
    ["Digest", h("span.mono.digest", { title: object.digest }, object.digest)],
    ["Description", typeof object.val?.description === "string" ? h("span", { dir: "auto" }, object.val.description) : null],
  ]);
}

function valueView(object) {
  return isPrompt(object.val) ? promptView(object.val) : h("div.valuebox", valueSection("Value", object.val));
}

function useView(object) {
  const [entity, project] = projectId().split("/");
  const name = `${object.object_id}:v${object.version_index}`;
  return [
    h("h3", "In Python"),
    codeBlock(["import weave", `weave.init("${entity}/${project}")`, `value = weave.ref("${name}").get()`].join("\n")),
    h("h3", "Reference"),
    codeBlock(referenceOf(object)),
    h("h3", "Over HTTP"),
    codeBlock(
      [
        `curl -s ${serverAddress()}/obj/read -H 'content-type: application/json' -d '{`,
        `  "project_id": "${entity}/${project}", "object_id": "${object.object_id}",`,
        `  "digest": "${object.digest}"}'`,
      ].join("\n"),
    ),
  ];
}
