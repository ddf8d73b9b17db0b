// Everything that is stored under a name with versions, but for ops: prompts, models, datasets, scorers and the rest.
import { computed, h } from "../lib/dom.js";
import { resource } from "../lib/data.js";
import { ago, int } from "../lib/format.js";
import { paged } from "../lib/pages.js";
import { empty } from "../lib/panels.js";
import { button, chip, loaded, page, searchBox, segments, timeNode, title } from "../lib/parts.js";
import { here, link, path, projectId, query, setQuery } from "../lib/router.js";
import { serverAddress } from "../lib/setup.js";
import { table } from "../lib/table.js";

const MOST = 10_000;
const KINDS = [
  ["", "All"],
  ["Prompt", "Prompts"],
  ["Model", "Models"],
  ["Dataset", "Datasets"],
  ["Scorer", "Scorers"],
  ["Evaluation", "Evaluations"],
  ["Leaderboard", "Leaderboards"],
  ["Agent", "Agents"],
  ["other", "Other"],
];
const NAMED = new Set(KINDS.map(([kind]) => kind));

/** The list of objects; at `/prompts` of prompts alone. */
export default function Objects() {
  const promptsOnly = here.peek().pathname.endsWith("/prompts");
  title(promptsOnly ? "Prompts" : "Objects");
  const kind = () => (promptsOnly ? "Prompt" : (query("kind") ?? ""));
  const state = resource(() => [
    "/objs/query",
    {
      filter: { is_op: false },
      metadata_only: true,
      include_tags_and_aliases: true,
      limit: MOST,
      sort_by: [{ field: "created_at", direction: "desc" }],
    },
  ]);
  const all = computed(() => grouped(state.data.value?.objs ?? []));
  const words = () => (query("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const found = computed(() => {
    const wanted = words();
    return all.value.filter((entry) => (!kind() || entry.kind === kind()) && wanted.every((word) => entry.search.includes(word)));
  });
  const rows = computed(() => sorted(found.value));
  const { shown, controls } = paged(() => rows.value);
  const hasRows = computed(() => rows.value.length > 0);
  return page(
    {
      title: promptsOnly ? "Prompts" : "Prompts & objects",
      extra: () => (state.data.value ? h("span.count", int(found.value.length)) : null),
      actions: button("New prompt", async () => (await import("./prompt_new.js")).newPrompt(), {
        iconName: "add",
        kind: promptsOnly ? "primary" : "",
        needs: "write",
      }),
    },
    [
      h(
        "div.bar-of-tools",
        searchBox(
          "Search names, classes and tags",
          () => query("q") ?? "",
          (text) => setQuery({ q: text, from: null }),
        ),
        promptsOnly ? h("a.button", { href: link("/objects") }, "All objects") : () => kindChoice(all.value, kind),
      ),
      h(
        "div.tablebox",
        { tabindex: 0, role: "region", "aria-label": "Objects" },
        loaded(state, () => () => (hasRows.value ? list(shown, state) : nothing(all.value, promptsOnly))),
      ),
      controls,
    ],
    { fixed: true },
  );
}

function kindChoice(all, kind) {
  const present = new Set(all.map((entry) => entry.kind));
  const options = KINDS.filter(([name]) => !name || present.has(name) || name === kind());
  return options.length > 2 ? segments("Kind", options, kind, (name) => setQuery({ kind: name, from: null })) : null;
}

/** One entry per name: its newest version with the data of all versions. */
function grouped(versions) {
  const byName = new Map();
  for (const version of versions) {
    const entry = byName.get(version.object_id);
    if (!entry)
      byName.set(version.object_id, {
        name: version.object_id,
        latest: version,
        count: 1,
        tags: new Set(version.tags),
        aliases: new Set(version.aliases),
        first: version.created_at,
      });
    else {
      entry.count++;
      entry.first = version.created_at;
      if (version.is_latest) entry.latest = version;
      for (const tag of version.tags ?? []) entry.tags.add(tag);
      for (const alias of version.aliases ?? []) entry.aliases.add(alias);
    }
  }
  return [...byName.values()].map((entry) => {
    entry.aliases.delete("latest");
    const { base_object_class: base, leaf_object_class: leaf } = entry.latest;
    const kind = NAMED.has(base) && base ? base : "other";
    const labels = [...entry.aliases, ...entry.tags];
    return { ...entry, kind, className: leaf ?? base ?? "", search: [entry.name, leaf, base, ...labels].join(" ").toLowerCase() };
  });
}

const ORDERS = {
  name: (entry) => entry.name.toLowerCase(),
  class: (entry) => entry.className,
  count: (entry) => entry.count,
  updated: (entry) => entry.latest.created_at,
};

function order() {
  const [key, direction] = (query("sort") ?? "updated.desc").split(".");
  return { key: key in ORDERS ? key : "updated", descending: direction === "desc" };
}

function sorted(entries) {
  const { key, descending } = order();
  const of = ORDERS[key];
  const sign = descending ? -1 : 1;
  return [...entries].sort((one, other) => (of(one) < of(other) ? -sign : of(one) > of(other) ? sign : 0));
}

function sortBy(key) {
  const now = order();
  setQuery({ sort: `${key}.${now.key === key && now.descending ? "asc" : "desc"}`, from: null });
}

function hrefOf({ name, kind }) {
  if (kind === "Dataset") return link(path`/datasets/${name}`);
  if (kind === "Leaderboard") return link(path`/leaderboards/${name}`);
  return link(path`/objects/${name}/versions/latest`);
}

function list(shown, state) {
  const columns = [
    {
      key: "name",
      label: "Name",
      sort: true,
      width: "40%",
      render: (entry) => h("a", { href: hrefOf(entry), title: entry.name, dir: "auto" }, entry.name),
    },
    {
      key: "class",
      label: "Class",
      sort: true,
      render: (entry) => (entry.className ? h("span.badge", entry.className) : h("span.faint", "Object")),
    },
    {
      key: "latest",
      label: "Latest",
      render: (entry) => h("span.mono", { title: entry.latest.digest }, `v${entry.latest.version_index}`),
    },
    { key: "count", label: "Versions", sort: true, number: true, render: (entry) => int(entry.count) },
    { key: "labels", label: "Tags and aliases", class: "labelcell", render: labels },
    { key: "user", label: "By", render: (entry) => h("span.dim", entry.latest.wb_user_id ?? "") },
    {
      key: "updated",
      label: "Updated",
      sort: true,
      number: true,
      render: (entry) => timeNode(entry.latest.created_at, ago),
    },
  ];
  return table({
      resizable: true,
    columns: () => columns,
    rows: shown,
    key: (entry) => entry.name,
    label: "Objects",
    href: hrefOf,
    order,
    onsort: sortBy,
    busy: () => state.busy.value,
  });
}

function labels(entry) {
  const all = [
    ...[...entry.aliases].map((name) => chip(name, null, { title: "Alias" })),
    ...[...entry.tags].map((name) => chip(name, null, { class: "plain", title: "Tag" })),
  ];
  return h("span.labelrow", all.slice(0, 3), all.length > 3 ? h("span.dim", `+${all.length - 3}`) : null);
}

function nothing(all, promptsOnly) {
  if (all.some((entry) => !promptsOnly || entry.kind === "Prompt")) {
    return empty({
      title: "Nothing found",
      text: "No name, class or tag matches this search.",
      action: h("button.button", { type: "button", onclick: () => setQuery({ q: null, kind: null }) }, "Show all"),
    });
  }
  const what = promptsOnly ? "prompts" : "objects";
  return empty({
    title: `No ${what} yet`,
    text: promptsOnly
      ? "A published prompt keeps every version: compare them here, try one in the playground, and see which calls used it."
      : "Prompts, models, datasets and any value that a program publishes are kept here with all their versions.",
    code: [
      "import weave",
      `# WANDB_BASE_URL=${serverAddress()}`,
      `weave.init("${projectId()}")`,
      'weave.publish(weave.StringPrompt("Answer {question} in {language}."), name="triage")',
    ].join("\n"),
    action: h("a.button", { href: link("/playground") }, "Write one in the playground"),
  });
}
