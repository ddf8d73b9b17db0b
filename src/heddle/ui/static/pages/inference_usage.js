// Who used which model, with errors and latencies; and the limits of projects and keys.
import { computed, h, onCleanup } from "../lib/dom.js";
import { get, resource, send } from "../lib/data.js";
import { form } from "../lib/dialog.js";
import { compact, duration, int, money, percent } from "../lib/format.js";
import { callsLink } from "../lib/filters.js";
import { card } from "../lib/panels.js";
import { button, loaded } from "../lib/parts.js";
import { link, query, setQuery } from "../lib/router.js";
import { table } from "../lib/table.js";

const REFRESH = 10_000;
const DAY = 86_400_000;

/** The first of so many days (UTC) up to today. */
const since = (days) => new Date(Date.now() - (days - 1) * DAY).toISOString().slice(0, 10);

/** Usage by model of the last days; of one project where the page belongs to one, unless all are asked for. */
export function usageCard(project) {
  const days = () => Number(query("days")) || 30;
  const address = () => {
    const search = new URLSearchParams({
      group_by: "model",
      start: since(days()),
    });
    if (project && query("all") !== "1") search.set("project", project);
    return `/v1/usage?${search}`;
  };
  const state = resource(address, get);
  const timer = setInterval(() => !document.hidden && !state.error.peek() && state.reload(), REFRESH);
  onCleanup(() => clearInterval(timer));
  const rows = () => state.data.value?.data ?? [];
  const known = computed(() => (state.data.value === null ? null : rows().length > 0));
  const picker = [
    project
      ? h(
          "label",
          h("input", {
            type: "checkbox",
            checked: () => query("all") === "1",
            onchange: (event) => setQuery({ all: event.target.checked ? "1" : null }),
          }),
          " All projects",
        )
      : null,
    h(
      "select",
      {
        "aria-label": "Time",
        onchange: (event) => setQuery({ days: event.target.value === "30" ? null : event.target.value }),
      },
      [
        ["1", "Today"],
        ["7", "7 days"],
        ["30", "30 days"],
        ["365", "A year"],
      ].map(([value, text]) => h("option", { value, selected: String(days()) === value }, text)),
    ),
  ];
  return card(
    "Usage by model",
    picker,
    loaded({ ...state, data: known }, (isThere) =>
      isThere
        ? h(
            "div.tablebox",
            { tabindex: 0, role: "region", "aria-label": "Usage by model" },
            table({ label: "Usage by model", columns: () => columns(project, days()), rows, key: (row) => row.model, keyboard: false }),
          )
        : h(
            "p.dim",
            "No requests in this time range. Every chat that this server answers is counted here",
            project ? [": ", h("a", { href: link("/playground") }, "ask something"), "."] : ".",
          ),
    ),
  );
}

/** A number of requests as the way to the calls that trace them, on the page of a project. */
function traced(project, days, row, text, conditions = {}) {
  if (!project || query("all") === "1") return text;
  const from = Date.parse(`${since(days)}T00:00:00Z`) / 1000;
  return callsLink(text, "Show the requests as calls", { from }, { "attributes.served_model": row.model, ...conditions });
}

const latency = (place, figure) => (row) =>
  row[place][figure] === null ? (row[place].count ? "> 300 s" : "") : `≤ ${duration(row[place][figure]).replace(".00", "")}`;

const columns = (project, days) => [
  { key: "model", label: "Model", render: (row) => h("span.mono", { title: row.model, dir: "auto" }, row.model ?? "") },
  { key: "requests", label: "Requests", number: true, render: (row) => traced(project, days, row, int(row.requests)) },
  {
    key: "errors",
    label: "Errors",
    number: true,
    render: (row) =>
      row.errors
        ? h("span.worse", { title: percent(row.errors / row.requests) },
          traced(project, days, row, int(row.errors), { status: "error" }))
        : h("span.dim", "0"),
  },
  { key: "prompt", label: "Tokens in", number: true, render: (row) => compact(row.prompt_tokens) },
  {
    key: "cached",
    label: "From cache",
    number: true,
    render: (row) => (row.prompt_tokens ? percent(row.cached_tokens / row.prompt_tokens, 0) : ""),
  },
  { key: "completion", label: "Tokens out", number: true, render: (row) => compact(row.completion_tokens) },
  { key: "first", label: "First token, p50", number: true, render: latency("first_token", "p50") },
  { key: "median", label: "Latency, p50", number: true, render: latency("latency", "p50") },
  { key: "high", label: "Latency, p95", number: true, render: latency("latency", "p95") },
  { key: "cost", label: "Cost", number: true, render: (row) => money(row.cost) },
];

/** The limits, for those who may see them. */
export function limitsCard() {
  const state = resource(() => "/v1/limits", get);
  return () => {
    if (state.error.value || !state.data.value) return null;
    const { defaults, data } = state.data.value;
    return card(
      "Limits",
      button("Set limit", () => setLimit(state), { iconName: "edit" }),
      h(
        "p.dim",
        "Concurrent completions, tokens per minute and quotas of a project or key. " +
          "Requests beyond them are rejected with 429.",
      ),
      h(
        "div.tablebox",
        { tabindex: 0, role: "region", "aria-label": "Limits" },
        table({
          label: "Limits",
          columns: () => LIMITS,
          rows: () => [...defaults, ...data],
          key: (row) => `${row.kind} ${row.name}`,
          keyboard: false,
        }),
      ),
    );
  };
}

const bound = (value) => (value ? int(value) : h("span.dim", "no limit"));

const LIMITS = [
  {
    key: "who",
    label: "For",
    render: (row) =>
      row.name === null
        ? h("span.dim", `every ${row.kind} without its own`)
        : h("span", { title: row.name }, h("b", row.name), h("span.dim", ` ${row.kind}`)),
  },
  { key: "concurrency", label: "At once", number: true, render: (row) => bound(row.concurrency) },
  { key: "tokens", label: "Tokens per minute", number: true, render: (row) => bound(row.tokens_per_minute) },
  { key: "quotas", label: "Quotas", render: (row) => (row.quotas === "none" ? h("span.dim", "none") : row.quotas) },
  { key: "running", label: "Running now", number: true, render: (row) => (row.name === null ? "" : int(row.running)) },
];

async function setLimit(state) {
  const whole = (text) => (text === "" ? null : Number(text));
  const done = await form(
    "Set limit",
    [
      {
        name: "kind",
        label: "For",
        options: [
          ["project", "a project"],
          ["key", "a key"],
        ],
      },
      {
        name: "name",
        label: "Name",
        required: true,
        placeholder: "team/project",
        autocomplete: "off",
        hint: "entity/project, or the id of a key.",
      },
      { name: "concurrency", label: "Concurrent completions", type: "number", min: 0, hint: "Leave empty for the server's setting; 0 means no limit." },
      { name: "tokens", label: "Tokens per minute", type: "number", min: 0, hint: "Leave empty for the server's setting; 0 means no limit." },
      { name: "quotas", label: "Quotas", autocomplete: "off", hint: "For example all requests 600/minute. Leave empty for the server's setting; none means no quota." },
    ],
    {
      submit: ({ kind, name, concurrency, tokens, quotas }) =>
        send("PUT", "/v1/limits", {
          kind,
          name,
          concurrency: whole(concurrency),
          tokens_per_minute: whole(tokens),
          quotas: quotas.trim() || null,
        }),
    },
  );
  if (done) state.reload();
}
