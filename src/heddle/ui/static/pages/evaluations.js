// Evaluation runs: what each came to, side by side, and which to compare.
import { computed, effect, h, signal } from "../lib/dom.js";
import { resource } from "../lib/data.js";
import { int, plural } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { button, failure, header, searchBox, segments, skeleton, title } from "../lib/parts.js";
import { followRuns } from "../lib/progress.js";
import { go, link, query, setQuery } from "../lib/router.js";
import { baselineOf, loadEvaluations, loadRuns, loadTotals, runLink } from "../lib/runs.js";
import { pager, table } from "../lib/table.js";
import { evaluationCards } from "./evaluations_cards.js";
import { orderOf, runColumns } from "./evaluations_columns.js";
import { newEvaluation, newRun, TEACHING } from "./evaluations_new.js";
import { viewMenu, viewOf } from "./evaluations_views.js";

const PAGE = 500;
const SHOWN = 200;

/** The list of evaluation runs. */
export default function Evaluations() {
  title("Evaluations");
  const stored = baselineOf();
  const baseline = computed(() => query("baseline") ?? stored.value);
  const page = () => Number(query("page") ?? 0);
  const state = resource(() => ({ page: page(), view: query("view") }), load);
  const runs = () => state.data.value?.runs ?? [];
  const turn = signal(0);
  const totals = resource(
    () =>
      runs().length
        ? {
            ids: runs()
              .slice(0, SHOWN)
              .map((run) => run.id),
            turn: turn.value,
          }
        : null,
    ({ ids }, abort) => loadTotals(ids, abort),
  );
  const shown = computed(() => arranged(runs(), totals.data.value));
  const refresh = () => {
    state.reload();
    turn.value++;
  };
  const progress = followRuns(
    () =>
      runs()
        .filter((run) => run.status === "running")
        .map((run) => run.id),
    refresh,
  );
  const selection = chosenRuns();
  const star = (id) => {
    stored.value = stored.value === id ? "" : id;
    setQuery({ baseline: stored.value });
  };
  const phase = computed(() =>
    state.error.value
      ? "failed"
      : state.data.value === null
        ? "waiting"
        : runs().length || query("view") || page()
          ? "full"
          : "empty",
  );
  const about = () => state.data.value?.about;
  const context = { totals: () => totals.data.value, progress, baseline, star, rows: () => shown.value };
  return h(
    "div.page",
    header({
      title: "Evaluations",
      extra: () => (runs().length ? h("span.count", int(runs().length)) : null),
      actions: actions(about, refresh),
    }),
    () => {
      if (phase.value === "failed") return failure(state.error.value, state.reload);
      return phase.value === "waiting"
        ? skeleton()
        : body({ runs, shown, selection, context, state, baseline, isEmpty: phase.value === "empty" });
    },
  );
}

async function load({ page, view }, abort) {
  const [about, chosen] = await Promise.all([loadEvaluations(abort), view ? viewOf(view, abort) : null]);
  const runs = await loadRuns({ limit: PAGE, offset: page * PAGE, query: chosen?.definition?.query ?? undefined }, about, abort);
  return { about, runs, view: chosen };
}

function actions(about, refresh) {
  return [
    button("New evaluation", () => newEvaluation(about(), refresh), { iconName: "add", needs: "write" }),
    button("Evaluate a model", () => newRun(about(), refresh), { kind: "primary", iconName: "play", needs: "write" }),
  ];
}

/** The runs that are selected, as a set that lives in the address. */
function chosenRuns() {
  const selection = signal(new Set((query("runs") ?? "").split(",").filter(Boolean)));
  effect(() => setQuery({ runs: [...selection.value].join(",") }));
  return selection;
}

const textOf = ({ id, label, model, evaluation }) => [model.name, model.ref, evaluation.name, label ?? "",
  id].join(" ").toLowerCase();

function arranged(runs, totals) {
  const words = (query("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const [evaluation, status] = [query("evaluation"), query("status")];
  const fits = (run) =>
    (!evaluation || run.evaluation.name === evaluation) &&
    (!status || run.status === status) &&
    words.every((word) => textOf(run).includes(word));
  return orderOf(runs.filter(fits), query("sort") ?? "started", query("up") === "1", totals);
}

function body({ runs, shown, selection, context, state, baseline, isEmpty }) {
  if (isEmpty) return h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Content" }, empty(TEACHING()));
  const order = () => ({ key: query("sort") ?? "started", descending: query("up") !== "1" });
  const sort = (key) => setQuery({ sort: key, up: order().key === key && order().descending ? "1" : null });
  const columns = computed(() => runColumns(context));
  return [
    h(
      "div.bar-of-tools",
      searchBox(
        "Search runs",
        () => query("q") ?? "",
        (text) => setQuery({ q: text }),
      ),
      segments(
        "Status",
        [
          ["", "Any"],
          ["running", "Running"],
          ["success", "OK"],
          ["error", "Failed"],
        ],
        () => query("status") ?? "",
        (status) => setQuery({ status }),
      ),
      viewMenu(() => state.data.value?.view, state.reload),
      h("span.grow"),
      () => compareButton(selection, baseline.value),
    ),
    evaluationCards(runs, context.totals),
    h(
      "div.tablebox",
      { tabindex: 0, role: "region", "aria-label": "Evaluation runs" },
      table({
      resizable: true,
        label: "Evaluation runs",
        columns: () => columns.value,
        rows: () => shown.value.slice(0, SHOWN),
        key: (run) => run.id,
        href: (run) => runLink(run.id),
        selection,
        order,
        onsort: sort,
        busy: () => state.busy.value,
      }),
      () =>
        shown.value.length
          ? null
          : empty({
              title: "No runs match these filters",
              action: button("Show all runs", () => setQuery({ q: null, status: null, evaluation: null, view: null }, false)),
            }),
      () =>
        shown.value.length > SHOWN
          ? h("p.dim.more-runs", `The first ${SHOWN} of ${plural(shown.value.length, "run")}; filter to see others.`)
          : null,
    ),
    () => (runs().length === PAGE || query("page") ? pages(runs()) : null),
  ];
}

function pages(runs) {
  const at = Number(query("page") ?? 0);
  const to = (page) => setQuery({ page: page || null }, false);
  return pager(
    `Runs ${int(at * PAGE + 1)} to ${int(at * PAGE + runs.length)}`,
    () => (at ? () => to(at - 1) : null),
    () => (runs.length < PAGE ? null : () => to(at + 1)),
  );
}

function compareButton(selection, baseline) {
  const ids = [...selection.value];
  if (!ids.length) return h("span.dim", "Select two or more runs to compare them");
  const others = ids.filter((id) => id !== baseline);
  const ordered = baseline && (ids.includes(baseline) || ids.length === 1) ? [baseline, ...others] : ids;
  return [
    button(
      `Clear ${ids.length}`,
      () => {
        selection.value = new Set();
      },
      { kind: "quiet" },
    ),
    button(
      ordered.length > 1 ? `Compare ${plural(ordered.length, "run")}` : "Compare",
      () => go(link("/evaluations/compare", { runs: ordered.join(",") })),
      { kind: "primary", iconName: "chart", disabled: ordered.length < 2 },
    ),
  ];
}
