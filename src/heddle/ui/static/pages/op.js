// One version of an op: its code, what changed in it, how its calls went.
import { computed, h } from "../lib/dom.js";
import { get, resource } from "../lib/data.js";
import { menu } from "../lib/dialog.js";
import { plural } from "../lib/format.js";
import { rawJson } from "../lib/json.js";
import { codeBlock, copyButton, empty, facts, tabs } from "../lib/panels.js";
import { header, loaded, timeNode, title } from "../lib/parts.js";
import { link, projectId, query } from "../lib/router.js";
import { findVersion, versionsOf } from "../lib/versions.js";
import { actionsOf, referenceOf } from "./object_actions.js";
import { callsView } from "./object_calls.js";
import { filesOf, filesView } from "./object_code.js";
import { besideVersions, readVersion } from "./object_versions.js";
import { changesView } from "./object_diff.js";
import { statisticsView } from "./op_statistics.js";

/** The page of one version; `version` is a digest, "latest", "v3", an alias or a tag. */
export default function OpPage({ name, version }) {
  title(name);
  const versions = resource(() => versionsOf(name, true));
  const activity = resource(
    () => projectId(),
    (project, abort) => get(`/_ui/api/ops?project=${encodeURIComponent(project)}`, abort),
  );
  const listed = computed(() =>
    [...(versions.data.value?.objs ?? [])].sort((one, other) => other.version_index - one.version_index),
  );
  const chosen = computed(() => findVersion(listed.value, version)?.digest ?? version);
  const state = resource(
    () => (versions.data.value ? [name, chosen.value] : null),
    ([id, digest], abort) => readVersion(id, digest, abort),
  );
  const calls = computed(() => countsByDigest(activity.data.value, name));
  const reload = () => {
    versions.reload();
    state.reload();
  };
  const object = () => state.data.value;
  return h(
    "div.page",
    header({
      crumbs: [["Ops", link("/ops")]],
      title: h("span", { title: name, dir: "auto" }, name),
      extra: () => (object() ? h("span.badge.good", `v${object().version_index}`) : null),
      actions: () =>
        object()
          ? [
              h("a.button", { href: link("/traces", { op: name }) }, "Calls"),
              copyButton(() => referenceOf(object()), "Copy reference", "Copy ref"),
              menu(null, () => actionsOf(object(), listed.value, reload), { kind: "quiet", label: "More" }),
            ]
          : null,
    }),
    besideVersions({
      room: "ops",
      name,
      versions,
      listed,
      chosen,
      note: (entry) => h("span", () => countText(calls.value.get(entry.digest))),
      content: loaded(state, (found) => body(found, listed)),
    }),
  );
}

function countsByDigest(activity, name) {
  const entry = activity?.ops.find((op) => op.name === name);
  return new Map(Object.entries(entry?.versions ?? {}).map(([ref, count]) => [ref.split(":").at(-1), count]));
}

const countText = (count) => (count ? plural(count, "call") : "");

function body(object, listed) {
  const files = filesOf(object.val);
  const reference = referenceOf(object);
  const hasOthers = listed.value.some(({ digest }) => digest !== object.digest);
  const entries = [
    [
      "code",
      "Code",
      () => (files.length ? filesView(files) : empty({ title: "No code", text: "This op was published without its source." })),
    ],
    hasOthers || query("with") ? ["diff", "Changes", () => changesView(object, listed, readVersion)] : null,
    [
      "calls",
      "Calls",
      () => callsView({ op_names: [reference] }, "No calls of this version.", link("/traces", { op: object.object_id })),
    ],
    ["statistics", "Statistics", () => statisticsView(object, reference)],
    ["use", "Use", () => useView(object, reference)],
    ["raw", "Raw", () => rawJson(object.val)],
  ].filter(Boolean);
  return [
    facts([
      ["Created", timeNode(object.created_at)],
      ["By", object.wb_user_id],
      ["Digest", h("span.mono.digest", { title: object.digest }, object.digest)],
    ]),
    ...tabs("What is shown", entries),
  ];
}

function useView(object, reference) {
  return [
    h("h3", "In Python"),
    codeBlock(["import weave", `weave.init("${projectId()}")`, `op = weave.ref("${reference}").get()`, "op(...)"].join("\n")),
    h("h3", "Its calls"),
    codeBlock(
      [
        "import weave",
        `client = weave.init("${projectId()}")`,
        `for call in client.get_calls(filter={"op_names": ["${reference}"]}):`,
        "    print(call.id, call.output)",
      ].join("\n"),
    ),
    h("h3", "Reference"),
    codeBlock(reference),
  ];
}
