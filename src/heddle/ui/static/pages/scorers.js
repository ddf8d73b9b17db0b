// What judges answers: scorers with their uses and how far people agree with them, and monitors that score new calls.
import { computed, h, signal, untrack } from "../lib/dom.js";
import { resource } from "../lib/data.js";
import { ago, int, parseRef, percent, plural } from "../lib/format.js";
import { empty, refHref, tabs } from "../lib/panels.js";
import { button, header, loaded, searchBox, segments, timeNode, title } from "../lib/parts.js";
import { link, path, projectId, query, setQuery } from "../lib/router.js";
import { agreements, useCount } from "../lib/agreement.js";
import { refOf } from "../lib/runs.js";
import { kindOfScorer, runsHere } from "../lib/scorerkinds.js";
import { table } from "../lib/table.js";
import { monitors } from "./scorers_monitors.js";
import { newBuiltIn, newJudge, scoreCalls } from "./scorers_new.js";

const MOST_COUNTED = 60;

/** The page of scorers and monitors. */
export default function Scorers() {
  title("Scorers");
  const state = resource(() => ["/objs/query", { filter: { base_object_classes: ["Scorer"] } }]);
  const list = () => grouped(state.data.value?.objs ?? []);
  const counts = resource(
    () =>
      list().length
        ? list()
            .slice(0, MOST_COUNTED)
            .map((scorer) => scorer.name)
        : null,
    loadCounts,
  );
  const agreed = resource(
    () => (list().length ? { project: projectId() } : null),
    (_, abort) => agreements(abort),
  );
  const [row, panel] = tabs("Scorers", [
    [
      "scorers",
      "Scorers",
      () => loaded(state, () => untrack(() => (list().length ? shown({ list, counts, agreed }) : nothing(state.reload)))),
    ],
    ["monitors", "Monitors", () => monitors(() => list().map((scorer) => scorer.latest))],
  ]);
  panel.classList.add("scorerpanel");
  return h(
    "div.page",
    header({
      title: "Scorers",
      extra: () => (list().length ? h("span.count", int(list().length)) : null),
      actions: actions(list, state),
    }),
    h("div.scorertabs", row),
    panel,
  );
}

function actions(list, state) {
  const usable = () =>
    list()
      .map((scorer) => scorer.latest)
      .filter(runsHere);
  return [
    () => (usable().length ? button("Score calls", () => scoreCalls(usable()), { iconName: "play", needs: "write" }) : null),
    button("Built-in scorer", () => newBuiltIn(state.reload), { iconName: "add", needs: "write" }),
    button("New judge", () => newJudge(state.reload), { kind: "primary", iconName: "scorer", needs: "write" }),
  ];
}

/** Versions by name: {name, versions, latest}. */
function grouped(objects) {
  const found = new Map();
  for (const object of objects) found.set(object.object_id, [...(found.get(object.object_id) ?? []), object]);
  return [...found].map(([name, versions]) => ({ name, versions, latest: versions.at(-1) }));
}

async function loadCounts(names, abort) {
  const counts = await Promise.all(names.map((name) => useCount(name, abort)));
  return Object.fromEntries(names.map((name, index) => [name, counts[index]]));
}

const ORDERS = {
  name: (row) => row.name.toLowerCase(),
  kind: (row) => kindOfScorer(row.latest),
  versions: (row) => row.versions.length,
  changed: (row) => row.latest.created_at,
};

function shown({ list, counts, agreed }) {
  const order = () => ({ key: query("sort") ?? "changed", descending: query("up") !== "1" });
  const sort = (key) => setQuery({ sort: key, up: order().key === key && order().descending ? "1" : null });
  const rows = computed(() => {
    const words = (query("q") ?? "").toLowerCase().split(/\s+/);
    const value =
      ORDERS[order().key] ??
      ((row) =>
        order().key === "uses" ? (counts.data.value?.[row.name] ?? -1) : (rate(agreed.data.value?.get(row.name)) ?? -1));
    const sign = order().descending ? -1 : 1;
    return list()
      .filter(
        (row) =>
          words.every((word) => row.name.toLowerCase().includes(word)) &&
          (!query("kind") || kindOfScorer(row.latest) === query("kind")),
      )
      .sort((one, other) => (value(one) < value(other) ? -1 : value(one) > value(other) ? 1 : 0) * sign);
  });
  const selection = signal(new Set());
  return [
    h(
      "div.bar-of-tools",
      searchBox(
        "Search scorers",
        () => query("q") ?? "",
        (text) => setQuery({ q: text }),
      ),
      segments(
        "Kind",
        [
          ["", "All"],
          ["built-in", "Built in"],
          ["LLM judge", "Judges"],
          ["code", "Code"],
        ],
        () => query("kind") ?? "",
        (kind) => setQuery({ kind }),
      ),
      h("span.grow"),
      () =>
        selection.value.size
          ? button(
              `Score calls by ${selection.value.size}`,
              () =>
                scoreCalls(
                  list()
                    .map((row) => row.latest)
                    .filter(runsHere),
                  selection.value,
                ),
              { kind: "primary", needs: "write" },
            )
          : null,
    ),
    h(
      "div.tablebox",
      { tabindex: 0, role: "region", "aria-label": "Scorers" },
      table({
        label: "Scorers",
        columns: () => columns(counts, agreed),
        rows: () => rows.value,
        key: (row) => row.name,
        order,
        onsort: sort,
        selection,
        href: (row) => objectLink(row.latest),
      }),
      () =>
        rows.value.length
          ? null
          : empty({ title: "No scorers match", action: button("Show all", () => setQuery({ q: null, kind: null })) }),
    ),
  ];
}

const objectLink = (object) => link(path`/objects/${object.object_id}/versions/${object.digest}`);
const rate = (count) => (count?.compared ? count.agreed / count.compared : null);

function columns(counts, agreed) {
  const uses = (row) => {
    const count = counts.data.value?.[row.name];
    return count === undefined ? "" : h("span", { class: count ? "" : "faint" }, int(count));
  };
  return [
    {
      key: "name",
      label: "Name",
      sort: true,
      render: (row) => h("a", { href: objectLink(row.latest), title: row.name, dir: "auto" }, row.name),
    },
    { key: "kind", label: "Kind", sort: true, render: (row) => kindBadge(row.latest) },
    { key: "says", label: "Class", render: (row) => h("span.mono.dim", row.latest.leaf_object_class ?? "") },
    { key: "versions", label: "Versions", number: true, sort: true, render: (row) => int(row.versions.length) },
    {
      key: "uses",
      label: "Scores given",
      number: true,
      sort: true,
      title: "How many scores it gave to calls of this project",
      render: uses,
    },
    {
      key: "agreement",
      label: "People agree",
      number: true,
      sort: true,
      title: "Of the calls that people judged too (thumbs, labels), the share where both agree",
      render: (row) => agreement(agreed.data.value?.get(row.name)),
    },
    { key: "code", label: "Code", render: (row) => codeLink(row.latest) },
    {
      key: "changed",
      label: "Changed",
      number: true,
      sort: true,
      render: (row) => timeNode(row.latest.created_at, ago),
    },
  ];
}

function kindBadge(object) {
  const kind = kindOfScorer(object);
  const says = {
    "built-in": "Runs on this server",
    "LLM judge": "Asks a model on this server",
    code: "Runs in programs only: the server never runs stored code",
  };
  return h("span.badge", { class: kind === "code" ? "" : "good", title: says[kind] }, kind);
}

function agreement(count) {
  if (!count?.compared) return h("span.faint", "–");
  return h(
    "span",
    { title: `Agrees on ${count.agreed} of ${plural(count.compared, "call")} that people judged` },
    percent(rate(count), 0),
    h("span.faint", ` of ${int(count.compared)}`),
  );
}

function codeLink(object) {
  const href = parseRef(object.val?.score)?.kind === "op" ? refHref(object.val.score) : null;
  return href && kindOfScorer(object) === "code"
    ? h("a.ref", { href }, "open")
    : h("span.faint", { title: refOf(object) }, "none needed");
}

function nothing(reload) {
  return h(
    "div.scroll",
    { tabindex: 0, role: "region", "aria-label": "Content" },
    empty({
      title: "Define what a good answer is",
      text: "A scorer judges an answer with a built-in rule, a model (an LLM judge) or code in your program. Create one here, or publish one:",
      code: [
        "import weave",
        `weave.init("${projectId()}")  # WANDB_BASE_URL=${location.origin}`,
        "",
        "class ValidJSONScorer(weave.Scorer):",
        '    """Built into heddle: an empty class of this name is all that a program needs."""',
        "",
        "weave.publish(ValidJSONScorer())",
      ].join("\n"),
      action: button("New built-in scorer", () => newBuiltIn(reload), { kind: "primary", iconName: "add", needs: "write" }),
    }),
  );
}
