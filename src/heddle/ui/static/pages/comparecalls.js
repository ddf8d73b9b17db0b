// Two to five calls side by side, each value beside those of the others; what differs from the first is marked.
import { computed, h } from "../lib/dom.js";
import { lines, resource } from "../lib/data.js";
import { compact, duration, int, money, nameOf, oneLine, plural, secondsBetween, when } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { button, dot, kindChip, loaded, page, title } from "../lib/parts.js";
import { readProblem } from "../lib/problem.js";
import { link, path, query, setQuery } from "../lib/router.js";
import { same } from "../lib/rowdiff.js";
import { callName, kindOf, statusOf, usageOf } from "../lib/spans.js";
import { wordDiff } from "../lib/textdiff.js";
import { valueView } from "../lib/value.js";

const [FEWEST, MOST] = [2, 5];
const DEEPEST = 8;
const MOST_ROWS = 400;
const WORDS_UP_TO = 4000;
const COLUMNS = ["id", "trace_id", "op_name", "display_name", "started_at", "ended_at", "exception", "summary", "parent_id"];

/** The page; `calls` in the address are ids with commas, `only=1` leaves out what is the same in all. */
export default function CompareCalls() {
  title("Compare calls");
  const ids = computed(() => [...new Set((query("calls") ?? "").split(",").filter(Boolean))]);
  const state = resource(() => ({ ids: ids.value }), read);
  const only = () => query("only") === "1";
  const toggle = h("label.checkline", h("input", { type: "checkbox", checked: only,
    onchange: (event) => setQuery({ only: event.target.checked ? "1" : null }) }), " Differences only");
  return page({ title: "Compare calls", crumbs: [["Calls", link("/traces")]], actions: toggle }, () => {
    if (ids.value.length < FEWEST || ids.value.length > MOST) return empty({ title: "Select two to five calls",
      text: "Select them in the list of calls and press Compare.",
      action: h("a.button.primary", { href: link("/traces") }, "Go to calls") });
    return loaded(state, (found) => comparison(found, ids.value, only));
  }, { fixed: true });
}

async function read({ ids }, abort) {
  if (ids.length < FEWEST || ids.length > MOST) return { calls: [], children: [] };
  const [calls, children] = await Promise.all([
    lines("/calls/stream_query", { filter: { call_ids: ids }, include_costs: true, include_feedback: true }, null, abort),
    lines("/calls/stream_query", { filter: { parent_ids: ids }, columns: COLUMNS, include_costs: true, limit: MOST_ROWS,
      sort_by: [{ field: "started_at", direction: "asc" }] }, null, abort),
  ]);
  return { calls: ids.map((id) => calls.find((call) => call.id === id)).filter(Boolean), children };
}

function comparison({ calls, children }, ids, only) {
  const missing = ids.filter((id) => !calls.some((call) => call.id === id));
  const notFound = missing.length ? h("p.failure", { role: "alert" }, `Not found: ${missing.join(", ")}`) : null;
  if (calls.length < FEWEST) return [notFound, empty({ title: calls.length ? "Only one of these calls is stored" : "None of these calls is stored",
    text: "They may have been deleted, be past the project's retention, or not have arrived yet.",
    action: h("a.button.primary", { href: link("/traces") }, "Go to calls") })];
  /** @type {[string, ReturnType<typeof row>[]][]} */
  const sections = [
    ["Call", figures(calls)],
    ["Usage", usage(calls)],
    ["Inputs", values(calls.map((call) => call.inputs ?? {}), "inputs")],
    ["Output", values(calls.map((call) => (call.exception ? { exception: readProblem(call.exception).message } : call.output)), "output")],
    ["Attributes", values(calls.map((call) => call.attributes ?? {}), "attributes")],
    ["Children", childRows(calls, children)],
    ["Feedback", feedback(calls)],
  ];
  const differing = sections.reduce((sum, [, rows]) => sum + rows.filter(differs).length, 0);
  return [
    notFound,
    h("div.bar-of-tools", h("span", { role: "status" }, differing ? `${int(differing)} ${differing === 1 ? "value differs" : "values differ"}`
      : "No differences")),
    h("div.tablebox", { tabindex: 0, role: "region", "aria-label": "Comparison" }, h("table.table.fixed.callcomparison",
      { "aria-label": "Calls side by side", style: { "min-width": `${170 + calls.length * 260}px` } },
      h("thead", h("tr", h("th", { scope: "col", style: { width: "170px" } }, "Field"),
        calls.map((call, index) => h("th", { scope: "col" }, heading(call, index, ids))))),
      sections.map(([name, rows]) => section(name, rows, only)))),
  ];
}

/** A row: its name, the value of each call, how one is shown, and what tells whether two are the same. */
const row = (name, entries, show, key = (value) => value) => ({ name, entries, show, key });
const differs = ({ entries, key }) => entries.some((value) => !same(key(value) ?? null, key(entries[0]) ?? null));

function section(name, rows, only) {
  const shown = () => rows.filter((entry) => !only() || differs(entry));
  return h("tbody", () => (shown().length ? [
    h("tr.sectionrow", h("th", { scope: "rowgroup", colspan: (rows[0]?.entries.length ?? 0) + 1 }, name)),
    shown().map((entry) => h("tr", { class: differs(entry) ? "differs" : "" },
      h("th", { scope: "row", title: entry.name, dir: "auto" }, differs(entry) && h("span.hidden-text", "differs: "), entry.name),
      entry.entries.map((value, index) => h("td", { class: index && !same(entry.key(value) ?? null, entry.key(entry.entries[0]) ?? null)
        ? "other" : "", dir: "auto" }, entry.show(value, index ? entry.entries[0] : undefined))))),
  ] : null));
}

function heading(call, index, ids) {
  const order = (next) => setQuery({ calls: next.join(",") });
  const rest = ids.filter((id) => id !== call.id);
  return h("span.callheading", dot(statusOf(call)),
    h("a.one-line", { href: link(path`/traces/${call.trace_id}`, { call: call.id }), title: call.id, dir: "auto" }, callName(call)),
    kindChip(kindOf(call)), h("span.grow"),
    index ? button("Base", () => order([call.id, ...rest]), { kind: "quiet", title: "Compare the others with this one" }) : h("small.faint", "base"),
    ids.length > FEWEST ? button(null, () => order(rest), { kind: "quiet", iconName: "close", label: `Remove ${callName(call)}` }) : null);
}

function figures(calls) {
  const used = calls.map(usageOf);
  const text = (value) => value ?? "";
  return [
    row("Operation", calls.map((call) => nameOf(call.op_name)), text),
    row("Status", calls.map(statusOf), text),
    row("Started", calls.map((call) => call.started_at), when, () => null),
    row("Latency", calls.map((call) => secondsBetween(call.started_at, call.ended_at)), measure(duration)),
    row("Tokens in", used.map(({ input }) => input || null), measure(compact)),
    row("Tokens out", used.map(({ output }) => output || null), measure(compact)),
    row("Cost", used.map(({ cost }) => cost), measure(money)),
    row("User", calls.map((call) => call.wb_user_id), text),
    row("Thread", calls.map((call) => call.thread_id), text),
  ].filter(({ entries }) => entries.some((value) => value != null && value !== ""));
}

/** A number with how much more or less it is than the first; lower is better for all that is measured here. */
function measure(write) {
  return (value, first) => {
    const share = first && value != null ? (value - first) / first : 0;
    return [write(value), Math.abs(share) < 0.005 ? null : h("span", { class: share < 0 ? "better" : "worse" },
      ` ${share > 0 ? "+" : "−"}${Math.abs(share * 100).toFixed(0)} %`)];
  };
}

function usage(calls) {
  const used = calls.map((call) => new Map(usageOf(call).rows.map((entry) => [entry.model, entry])));
  const models = [...new Set(used.flatMap((found) => [...found.keys()]))];
  return models.flatMap((model) => [["in", "input"], ["out", "output"], ["cached", "cached"], ["cost", "cost"]].map(([word, name]) =>
    row(`${model}, ${word}`, used.map((found) => found.get(model)?.[name] ?? null), measure(name === "cost" ? money : int)))
    .filter(({ entries }) => entries.some(Boolean)));
}

/** The values by their paths, in the order in which they are met. */
function values(roots, name) {
  const found = roots.map((root) => flatten(root, name));
  const paths = [...new Set(found.flatMap((entries) => [...entries.keys()]))];
  const rows = paths.slice(0, MOST_ROWS).map((one) => row(one, found.map((entries) => entries.get(one)), valueCell));
  if (paths.length <= MOST_ROWS) return rows;
  return [...rows, row(`${int(paths.length - MOST_ROWS)} more`, roots, () => "not shown", (root) => JSON.stringify(root))];
}

function flatten(root, name) {
  const found = new Map();
  const walk = (value, at, level) => {
    const isOpen = value !== null && typeof value === "object" && !("_type" in value) && level < DEEPEST;
    const inner = isOpen ? Object.entries(value) : [];
    if (!inner.length) {
      if (value !== undefined && value !== null) found.set(at, value);
    } else for (const [key, item] of inner) walk(item, `${at}.${key.replaceAll(".", "\\.")}`, level + 1);
  };
  walk(root, name, 0);
  return found;
}

function valueCell(value, first) {
  if (value == null) return h("span.faint", "–");
  const [one, other] = [first, value];
  const isText = typeof one === "string" && typeof other === "string" && !other.startsWith("weave:///");
  if (!isText || one === other || one.length + other.length > WORDS_UP_TO) return valueView(value);
  return h("div.changedwords", wordDiff(one, other).map(({ kind, text }) => (kind === "same" ? text
    : h(kind === "added" ? "ins" : "del", text))));
}

/** The calls directly below, those of one name in their order. */
function childRows(calls, children) {
  const below = calls.map((call) => {
    const [found, met] = [new Map(), new Map()];
    for (const child of children.filter((other) => other.parent_id === call.id)) {
      const name = callName(child);
      met.set(name, (met.get(name) ?? 0) + 1);
      found.set(met.get(name) > 1 ? `${name} (${met.get(name)})` : name, child);
    }
    return found;
  });
  const names = [...new Set(below.flatMap((found) => [...found.keys()]))];
  const told = (child) => child && [statusOf(child), usageOf(child).input, usageOf(child).output];
  const counts = row("Number", below.map((found) => found.size), (value) => int(value));
  const seconds = (child) => secondsBetween(child.started_at, child.ended_at);
  const show = (child) => (child ? [dot(statusOf(child)), " ", h("a", { href: link(path`/traces/${child.trace_id}`, { call: child.id }) },
    duration(seconds(child)) || "running"), tokensText(child)] : h("span.faint", "–"));
  return names.length ? [counts, ...names.map((name) => row(name, below.map((found) => found.get(name)), show, told))] : [];
}

function tokensText(child) {
  const { input, output } = usageOf(child);
  return input + output ? h("span.dim", `, ${plural(input + output, "token", "tokens", compact)}`) : null;
}

function feedback(calls) {
  const said = calls.map((call) => call.summary?.weave?.feedback ?? []);
  const types = [...new Set(said.flat().map((entry) => entry.feedback_type))];
  const text = ({ payload }) => payload?.emoji ?? payload?.note ?? oneLine(payload?.output ?? payload?.value ?? payload, 300);
  return types.map((type) => row(type.replace(/^wandb\.(runnable|annotation)\.|^wandb\.|\.1$/g, ""),
    said.map((entries) => entries.filter((entry) => entry.feedback_type === type).map(text).join("\n") || null),
    (value) => value ?? h("span.faint", "–")));
}
