// What was spent in a time: tiles, bars over time, and a table with shares.
import { h } from "../lib/dom.js";
import { legend, SERIES, shareBar } from "../lib/chart.js";
import { compact, day, int, money, percent, plural, when } from "../lib/format.js";
import { card, empty, tile } from "../lib/panels.js";
import { button, icon, loaded } from "../lib/parts.js";
import { callsLink, callsOf } from "../lib/filters.js";
import { go, link, projectId, setQuery } from "../lib/router.js";
import { serverAddress } from "../lib/setup.js";
import { stackedBars } from "../lib/stackedbars.js";
import { table } from "../lib/table.js";
import { rangeQuery } from "../lib/timerange.js";
import { addPrice } from "./costs_form.js";

const COLOURED = 5;
const MOST_SHOWN = 200;
const LABELS = { model: "Model", op: "Op", user: "User", day: "Day" };

/** The totals in the resource of /_ui/api/costs. */
export function spendingView(state, reload) {
  return h(
    "div.spending",
    { class: () => (state.busy.value && state.data.value ? "busy" : "") },
    loaded(state, (found) => {
      if (found.first === null) return nothingYet();
      if (!found.groups.length)
        return empty({
          title: "No tokens in this time range",
          text: `The first call that used tokens was on ${day(found.first)}.`,
          action: button("Show everything", () => setQuery({ t: "all", t0: null, t1: null })),
        });
      return [tiles(found), unpriced(found.groups, reload), chart(found, found.by), costTable(found, found.by, reload)];
    }),
  );
}

const sum = (groups, key) => groups.reduce((total, group) => total + (group[key] ?? 0), 0);

function tiles(found) {
  const { groups } = found;
  const counted = (text) => callsLink(text, "Calls whose tokens are counted", rangeOf(found), { used: "" });
  const [prompt, cached, calls] = [sum(groups, "prompt"), sum(groups, "cache_read"), found.calls];
  const cost = sum(groups, "cost");
  return h(
    "div.tiles",
    tile("Cost", counted(money(cost)), calls ? `${money(cost / calls)} per call` : ""),
    tile("Calls with tokens", counted(compact(calls))),
    tile("Input tokens", counted(compact(prompt)), `${compact(prompt / Math.max(1, calls))} per call`),
    tile(
      "Output tokens",
      counted(compact(sum(groups, "completion"))),
      `${compact(sum(groups, "completion") / Math.max(1, calls))} per call`,
    ),
    tile("Cached input", percent(prompt ? Math.min(1, cached / prompt) : 0), plural(cached, "token", "tokens", compact)),
  );
}

/** Models without a price cost nothing in every sum here, so that is said before the sums are read. */
function unpriced(groups, reload) {
  const models = [...new Set(groups.flatMap((group) => group.unpriced))];
  if (!models.length) return null;
  return h(
    "div.notice",
    { role: "note" },
    icon("info"),
    h(
      "p",
      models.length === 1
        ? [h("b", { dir: "auto" }, models[0]), " has no price: its tokens are not included."]
        : `${plural(models.length, "model")} have no price: their tokens are not included.`,
    ),
    models.length === 1
      ? button("Add price", () => addPrice({ model: models[0] }, reload), { needs: "write" })
      : button("Add prices", () => setQuery({ view: "prices" }, false)),
  );
}

function chart(found, by) {
  const named = by === "day" ? [{ name: "cost", cells: merged(found.groups), label: "Cost" }] : series(found.groups, by);
  const shown = named.map((entry, index) => ({
    key: `c${index}`,
    label: entry.label,
    color: index < COLOURED ? SERIES[index] : "var(--faint)",
    chosen: by === "day" || index >= COLOURED ? { used: "" } : conditionsOf(entry.name, by),
  }));
  const last = Math.max(0, Math.ceil((found.end - found.start) / found.step) - 1);
  const rows = Array.from({ length: last + 1 }, (_, bucket) => ({
    time: found.start + bucket * found.step,
    ...Object.fromEntries(named.map((entry, index) => [`c${index}`, entry.cells[bucket] ?? 0])),
  }));
  const unit = found.step === 3600 ? "hour" : found.step === 86_400 ? "day" : "week";
  return card(
    `Cost by ${unit}`,
    legend(shown.map(({ color, label }) => [color, label])),
    stackedBars({
      rows: () => rows,
      step: () => found.step,
      series: shown,
      label: `Cost by ${unit}`,
      height: 240,
      formatY: money,
      onrange: (from, to) => setQuery(rangeQuery(from, to), false),
      onpick: (from, to, part) =>
        go(callsOf({ from, to }, part?.chosen ?? { used: "" })),
    }),
  );
}

/** Amounts of a column that are mostly below a cent, all with the same digits. */
const smallMoney = (value) => (value >= 0.00001 && value < 1 ? `$${value.toFixed(5)}` : money(value));

function series(groups, by) {
  const costly = groups.filter(({ cost }) => cost !== null);
  const first = costly.slice(0, COLOURED).map((group) => ({ ...group, label: shortName(group.name, by) }));
  const rest = costly.slice(COLOURED);
  return rest.length ? [...first, { name: "others", label: plural(rest.length, "other"), cells: merged(rest) }] : first;
}

function merged(groups) {
  const cells = {};
  for (const group of groups)
    for (const [bucket, cost] of Object.entries(group.cells)) cells[bucket] = (cells[bucket] ?? 0) + cost;
  return cells;
}

/** The text of a group's name. */
export function nameText(name, by, step = 86_400) {
  if (by === "day") return step < 86_400 ? when(Number(name)) : day(Number(name));
  return name || (by === "user" ? "unknown user" : "unknown");
}

const shortName = (name, by) => {
  const text = nameText(name, by);
  return text.length > 34 ? `${text.slice(0, 32)}…` : text;
};

/** The conditions that select the calls whose tokens count in a group by model, op or user. */
const conditionsOf = (name, by) => (by === "model" ? { used: name } : { [by]: name, used: "" });

/** The calls that a group was made of: those whose tokens count in it. */
function hrefOf(group, by, found) {
  if (by !== "day") return callsOf(rangeOf(found), conditionsOf(group.name, by));
  const [from, to] = [Number(group.name), Number(group.name) + found.step];
  return callsOf({ from: Math.max(from, found.from), to: Math.min(to, Math.ceil(found.end)) }, { used: "" });
}

/** The range that was asked for; `start` is that of the first bucket. */
const rangeOf = (found) => ({ from: found.from, to: Math.ceil(found.end) });

function costTable(found, by, reload) {
  const total = sum(found.groups, "cost");
  const groups = by === "day" ? [...found.groups].sort((one, other) => Number(other.name) - Number(one.name)) : found.groups;
  const color = new Map(
    groups
      .filter(({ cost }) => cost !== null)
      .slice(0, COLOURED)
      .map((group, index) => [group.name, SERIES[index]]),
  );
  const columns = [
    {
      key: "name",
      label: LABELS[by],
      width: "34%",
      render: (group) =>
        h(
          "a",
          { href: hrefOf(group, by, found), title: nameText(group.name, by, found.step), dir: "auto" },
          by === "day" ? null : h("i.swatch", { style: { background: color.get(group.name) ?? "var(--faint)" } }),
          nameText(group.name, by, found.step),
        ),
    },
    { key: "cost", label: "Cost", number: true, render: (group) => costCell(group, by, reload) },
    {
      key: "share",
      label: "Share",
      number: true,
      render: (group) =>
        group.cost
          ? shareBar(
              group.cost / total,
              percent(group.cost / total),
              by === "day" ? SERIES[0] : (color.get(group.name) ?? "var(--faint)"),
            )
          : "",
    },
    { key: "calls", label: "Calls", number: true, render: (group) => h("a.plainlink", { href: hrefOf(group, by, found) }, int(group.calls)) },
    { key: "prompt", label: "Input tokens", number: true, render: (group) => int(group.prompt) },
    {
      key: "cache",
      label: "Cached",
      number: true,
      title: "Input tokens read from a cache",
      render: (group) => int(group.cache_read),
    },
    { key: "completion", label: "Output tokens", number: true, render: (group) => int(group.completion) },
    {
      key: "average",
      label: "Per call",
      number: true,
      render: (group) => (group.cost === null ? "" : smallMoney(group.cost / Math.max(1, group.calls))),
    },
  ];
  const footer = h(
    "tr",
    [
      "Total",
      money(total),
      "",
      int(found.calls),
      int(sum(groups, "prompt")),
      int(sum(groups, "cache_read")),
      int(sum(groups, "completion")),
      "",
    ].map((text, index) => h("td", { class: index ? "number" : "" }, text)),
  );
  const shown = groups.slice(0, MOST_SHOWN);
  return card(
    `By ${LABELS[by].toLowerCase()}`,
    groups.length > shown.length ? `the first ${MOST_SHOWN} of ${int(groups.length)}` : null,
    h(
      "div.tablebox",
      { tabindex: 0, role: "region", "aria-label": `Costs by ${by}` },
      table({
        columns: () => columns,
        rows: () => shown,
        key: (group) => group.name,
        label: `Costs by ${by}`,
        href: (group) => hrefOf(group, by, found),
        footer,
      }),
    ),
  );
}

function costCell(group, by, reload) {
  if (group.cost !== null && !group.unpriced.length) return money(group.cost);
  if (group.cost !== null)
    return h("span", { title: `At least: ${group.unpriced.join(", ")} without a price` }, "≥ ", money(group.cost));
  return h(
    "span.noprice",
    h("span.badge.warn", "no price"),
    by === "model" &&
      button("Add", () => addPrice({ model: group.name }, reload), {
        kind: "quiet",
        needs: "write",
        "aria-label": `Add price for ${group.name}`,
      }),
  );
}

function nothingYet() {
  return empty({
    title: "No costs yet",
    text:
      "Traced model clients report their tokens automatically. Known models have a built-in price; " +
      "set your own under Prices.",
    code: [
      "import weave, openai",
      `# WANDB_BASE_URL=${serverAddress()}`,
      `weave.init("${projectId()}")`,
      'openai.OpenAI().chat.completions.create(model="gpt-4o-mini",',
      '    messages=[{"role": "user", "content": "Hello"}])',
    ].join("\n"),
    action: h("a.button", { href: link("/costs", { view: "prices" }) }, "Prices"),
  });
}
