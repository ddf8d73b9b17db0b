// How a project is doing: figures against the time before, charts of one shared range, what failed, what runs.
import { computed, h, onCleanup } from "../lib/dom.js";
import { get, resource } from "../lib/data.js";
import { compact, duration, int, money, percent } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { header, loaded, title } from "../lib/parts.js";
import { link, projectId, siteLink } from "../lib/router.js";
import { keyHint, setupLines } from "../lib/setup.js";
import { timeRange, timeRangePicker } from "../lib/timerange.js";
import { charts } from "./overview_charts.js";
import { newestErrors, runningNow } from "./overview_lists.js";

const RANGE = "7d";
const OFTEN = 4000;
const SELDOM = 30_000;

/** The overview of the open project. */
export default function Overview() {
  title(`Overview · ${projectId()}`);
  const range = timeRange(RANGE);
  const state = resource(() => address(range.value), get);
  const hasCalls = computed(() => Boolean(state.data.value?.has_calls) && !state.error.value);
  watch(state);
  return h(
    "div.page",
    header({ title: "Overview", actions: timeRangePicker(RANGE) }),
    h(
      "div.scroll",
      { tabindex: 0, role: "region", "aria-label": "Overview", "aria-busy": () => String(state.busy.value) },
      loaded(state, (data) => (data.has_calls ? [tiles(data), charts(data)] : first())),
      () => (hasCalls.value ? lists(range) : null),
    ),
  );
}

function address({ from, to }) {
  const search = new URLSearchParams({ project: projectId(), zone: String(new Date().getTimezoneOffset()) });
  if (from !== null) search.set("start", from);
  if (to !== null) search.set("end", to);
  return `/_ui/api/overview?${search}`;
}

/** Ask again now and then: often while the first call is awaited, and never behind another tab. */
function watch(state) {
  let asked = Date.now();
  const timer = setInterval(() => {
    const wait = state.data.peek()?.has_calls === false ? OFTEN : SELDOM;
    if (document.hidden || state.error.peek() || Date.now() - asked < wait) return;
    asked = Date.now();
    state.reload();
  }, 1000);
  onCleanup(() => clearInterval(timer));
}

function first() {
  return empty({
    title: "Nothing was traced here yet",
    text:
      "Run these lines in a shell. The first call shows here within seconds; " +
      "with it come latencies, costs, errors and charts.",
    code: setupLines(projectId()),
    action: [
      h("p", keyHint()),
      h(
        "p",
        "Or begin elsewhere: ",
        h("a", { href: link("/playground") }, "chat with a model"),
        ", ",
        h("a", { href: link("/datasets") }, "make a dataset"),
        ", ",
        h("a", { href: siteLink("/docs") }, "read the API"),
        ".",
      ),
    ],
  });
}

function lists(range) {
  return h("div.columns", newestErrors(range), runningNow());
}

function tiles({ totals, before }) {
  const tokens = (sums) => sums.prompt_tokens + sums.completion_tokens;
  const share = (sums) => (sums.calls ? sums.errors / sums.calls : null);
  const was = (value, change) => (before ? change(value(totals), value(before)) : "");
  return h(
    "div.tiles.overviewtiles",
    tile(
      "Calls",
      compact(totals.calls),
      int(totals.calls),
      was((sums) => sums.calls, growth),
    ),
    tile(
      "Error rate",
      totals.errors ? percent(share(totals)) : totals.calls ? "0 %" : "",
      `${int(totals.errors)} of ${int(totals.calls)} calls`,
      was(share, points),
    ),
    tile(
      "Latency, median",
      duration(totals.p50),
      "Of root calls that ended",
      was((sums) => sums.p50, slower),
    ),
    tile(
      "Latency, p95",
      duration(totals.p95),
      "Of root calls that ended",
      was((sums) => sums.p95, slower),
    ),
    tile(
      "Tokens",
      compact(tokens(totals)),
      `${int(totals.prompt_tokens)} in, ${int(totals.completion_tokens)} out`,
      was(tokens, growth),
    ),
    tile(
      "Cost",
      money(totals.cost) || "–",
      totals.cost === null ? "No model that was used has a price" : "",
      was((sums) => sums.cost, growth),
    ),
  );
}

const tile = (label, value, more, change) =>
  h(
    "div.tile",
    h("small", label),
    h("b", { title: more || null }, value || "–"),
    h("span", change && change !== "as before" ? [change, " vs before"] : change || "\u00a0"),
  );

const relative = (now, then) => (then && now !== null ? (now - then) / then : null);
const sign = (value) => (value > 0 ? "▲" : "▼");

function growth(now, then) {
  const change = relative(now, then);
  return change === null ? "" : Math.abs(change) < 0.005 ? "as before" : `${sign(change)} ${percent(Math.abs(change), 0)}`;
}

function points(now, then) {
  if (now === null || then === null) return "";
  const change = now - then;
  if (Math.abs(change) < 0.0005) return "as before";
  return h("span", { class: change > 0 ? "worse" : "better" }, `${sign(change)} ${(Math.abs(change) * 100).toFixed(1)} points`);
}

function slower(now, then) {
  const change = relative(now, then);
  if (change === null) return "";
  if (Math.abs(change) < 0.02) return "as before";
  return h("span", { class: change > 0 ? "worse" : "better" }, `${sign(change)} ${percent(Math.abs(change), 0)}`);
}
