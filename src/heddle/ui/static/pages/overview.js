// The state of a project: statistics compared with the previous period, charts with a shared range, failures, running work.
import { computed, h, onCleanup, signal, untrack } from "../lib/dom.js";
import { get, postProject, resource } from "../lib/data.js";
import { compact, duration, int, money, percent, plural } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { callsLink } from "../lib/filters.js";
import { button, header, loaded, title } from "../lib/parts.js";
import { rejections } from "../lib/rejections.js";
import { go, link, projectId, siteLink } from "../lib/router.js";
import { timeRange, timeRangePicker } from "../lib/timerange.js";
import { charts } from "./overview_charts.js";
import { newestErrors, runningNow } from "./overview_lists.js";

const RANGE = "7d";
const OFTEN = 4000;
const SELDOM = 30_000;

/** The overview of the open project. */
export default function Overview() {
  title("Overview");
  const range = timeRange(RANGE);
  const state = resource(() => address(range.value), get);
  const hasCalls = computed(() => Boolean(state.data.value?.has_calls) && !state.error.value);
  // The lines for the first call look for it, too, and announce it themselves.
  let isAwaited = false;
  const reload = () => {
    isAwaited = false;
    state.reload();
  };
  watch(state);
  return h(
    "div.page",
    header({ title: "Overview", actions: timeRangePicker(RANGE) }),
    h(
      "div.scroll",
      { tabindex: 0, role: "region", "aria-label": "Overview", "aria-busy": () => String(state.busy.value) },
      projectId().endsWith("/example") ? exampleNote() : null,
      loaded(state, (data) => {
        if (isAwaited && data.has_calls) import("../lib/firstcall.js").then(({ announce }) => announce(projectId()));
        isAwaited = !data.has_calls;
        return [rejections(data.rejected), isAwaited ? first(reload) : [tiles(data, range.peek()), charts(data)]];
      }),
      () => (hasCalls.value ? lists(range) : null),
    ),
  );
}

/** Says that this is the example, and lets it be deleted. */
function exampleNote() {
  const remove = async () => {
    const { attempt, confirm } = await import("../lib/dialog.js");
    if (!(await confirm("Delete the example project?", "Everything in it is deleted: traces, dataset, evaluation and feedback. This cannot be undone."))) return;
    const done = await attempt(() => postProject("/_ui/api/projects/example/delete"), "Example project deleted");
    if (done) go(siteLink("/"));
  };
  return h("div.card.examplenote", h("span", "This is the example project: look around, change what you like. "),
    button("Delete it", remove, { iconName: "trash", needs: "delete" }));
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

function first(reload) {
  return empty({
    title: "No traces yet",
    text:
      "Run these lines in a shell. The first call appears here within seconds, " +
      "along with latency, cost, errors and charts.",
    action: [
      firstCallOf(projectId(), reload),
      h(
        "p",
        "Or start with something else: ",
        h("a", { href: link("/playground") }, "chat with a model"),
        ", ",
        h("a", { href: link("/datasets") }, "create a dataset"),
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

function tiles({ totals, before }, range) {
  const tokens = (sums) => sums.prompt_tokens + sums.completion_tokens;
  const share = (sums) => (sums.calls ? sums.errors / sums.calls : null);
  const was = (value, change, write = compact) => (before ? change(value(totals), value(before), write) : "");
  return h(
    "div.tiles.overviewtiles",
    tile(
      "Calls",
      callsLink(compact(totals.calls), int(totals.calls), range),
      int(totals.calls),
      was((sums) => sums.calls, growth),
    ),
    tile(
      "Error rate",
      totals.errors
        ? callsLink(percent(share(totals)), `${plural(totals.errors, "call")} failed`, range, { status: "error" })
        : totals.calls
          ? "0 %"
          : "",
      `${int(totals.errors)} of ${plural(totals.calls, "call")}`,
      was(share, points),
    ),
    tile(
      "Latency, median",
      rootsLink(totals.p50, range),
      "Of finished root calls",
      was((sums) => sums.p50, slower),
    ),
    tile(
      "Latency, p95",
      rootsLink(totals.p95, range),
      "Of finished root calls",
      was((sums) => sums.p95, slower),
    ),
    tile(
      "Tokens",
      callsLink(compact(tokens(totals)), "Calls whose tokens are counted", range, { used: "" }),
      `${int(totals.prompt_tokens)} in, ${int(totals.completion_tokens)} out`,
      was(tokens, growth),
    ),
    tile(
      "Cost",
      totals.cost === null ? "–" : callsLink(money(totals.cost), "Calls whose tokens are counted", range, { used: "" }),
      totals.cost === null ? "None of the models used has a price" : "",
      was((sums) => sums.cost, growth, money),
    ),
  );
}

const rootsLink = (seconds, range) => seconds === null ? "" : callsLink(duration(seconds), "All traces", range, {}, true);

const tile = (label, value, more, change) =>
  h(
    "div.tile",
    h("small", label),
    h("b", { title: more || null }, value || "–"),
    h("span", change && change !== "as before" ? [change, " vs before"] : change || "\u00a0"),
  );

const relative = (now, then) => (then && now !== null ? (now - then) / then : null);
const sign = (value) => (value > 0 ? "▲" : "▼");

function growth(now, then, write) {
  const change = relative(now, then);
  if (change === null) return "";
  return Math.abs(change) < 0.005 ? "as before" : written(change, write(then));
}

/** A change in percent; one of more than ten times is told by what it was. */
function written(change, was) {
  return change > 10 ? `▲ from ${was}` : `${sign(change)} ${percent(Math.abs(change), 0)}`;
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
  return h("span", { class: change > 0 ? "worse" : "better" }, written(change, duration(then)));
}

/** The lines for a first call; their module is loaded where they are needed. */
function firstCallOf(project, reload) {
  const shown = signal(/** @type {any} */ (null));
  import("../lib/firstcall.js").then((module) => {
    shown.value = () => module.firstCall(project, reload);
  });
  return () => (shown.value ? untrack(shown.value) : null);
}
