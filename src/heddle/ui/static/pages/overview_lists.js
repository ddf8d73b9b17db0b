// What failed lately and what is at work now, beside the charts of the overview.
import { h, onCleanup } from "../lib/dom.js";
import { get, lines, resource } from "../lib/data.js";
import { ago, cut, duration, nameOf, secondsBetween, when } from "../lib/format.js";
import { card } from "../lib/panels.js";
import { dot, loaded } from "../lib/parts.js";
import { problemText } from "../lib/problem.js";
import { link, path, projectId } from "../lib/router.js";

const SHOWN = 8;
const status = (word) => ({ $eq: [{ $getField: "summary.weave.status" }, { $literal: word }] });
const since = (seconds) => ({ $gte: [{ $getField: "started_at" }, { $literal: seconds }] });
const before = (seconds) => ({ $lt: [{ $getField: "started_at" }, { $literal: seconds }] });

/** A range as the calls page takes it. */
const sameTime = ({ preset, from, to }) => (preset ? { t: preset } : { t0: from, t1: to });

/** The newest failed calls of a range, each a link to its place in the trace. */
export function newestErrors(range) {
  const body = () => {
    const { from, to } = range.value;
    const terms = [status("error"), from !== null && since(from), to !== null && before(to)].filter(Boolean);
    return {
      query: { $expr: { $and: terms } },
      limit: SHOWN,
      sort_by: [{ field: "started_at", direction: "desc" }],
      columns: ["id", "trace_id", "op_name", "display_name", "started_at", "exception"],
    };
  };
  const state = resource(body, (asked, abort) => lines("/calls/stream_query", asked, null, abort));
  const all = h("a", { href: () => link("/traces", { status: "error", ...sameTime(range.value) }) }, "All errors");
  return card(
    "Newest errors",
    all,
    loaded(state, (calls) =>
      calls.length ? h("ul.happenings", calls.map(errorLine)) : h("p.nothing", "No call failed in this time."),
    ),
  );
}

function errorLine(call) {
  const reason = problemText(call.exception);
  return h(
    "li",
    dot("error"),
    h(
      "a.happening",
      { href: link(path`/traces/${call.trace_id}`, { call: call.id }) },
      h("b", { dir: "auto", title: nameOf(call.op_name) }, call.display_name || nameOf(call.op_name)),
      h("span", { dir: "auto", title: cut(reason, 600) }, reason),
    ),
    h("time", { title: when(call.started_at) }, ago(call.started_at)),
  );
}

/** Training jobs and evaluations that have not ended, looked at again every few seconds. */
export function runningNow() {
  const jobs = resource(() => `/_ui/api/training?${new URLSearchParams({ project: projectId() })}`, get);
  const evaluations = resource(
    () => ({
      filter: { op_names: [`weave:///${projectId()}/op/Evaluation.evaluate:*`] },
      query: { $expr: status("running") },
      limit: SHOWN,
      sort_by: [{ field: "started_at", direction: "desc" }],
      columns: ["id", "trace_id", "op_name", "display_name", "started_at"],
    }),
    (asked, abort) => lines("/calls/stream_query", asked, null, abort),
  );
  const timer = setInterval(() => {
    if (document.hidden || jobs.error.peek()) return;
    jobs.reload();
    evaluations.reload();
  }, 10_000);
  onCleanup(() => clearInterval(timer));
  return card(
    "At work now",
    null,
    loaded(jobs, ({ models }) => () => {
      const found = [...models.filter(({ open }) => open).map(jobLine), ...(evaluations.data.value ?? []).map(evaluationLine)];
      return found.length ? h("ul.happenings", found) : nothingRuns(models);
    }),
  );
}

function nothingRuns(models) {
  const newest = models.reduce((best, model) => ((model.last_at ?? "") > (best?.last_at ?? "") ? model : best), null);
  return h(
    "p.nothing",
    "No training job and no evaluation is running. ",
    newest
      ? [
          "The last job trained ",
          h("a", { href: link(path`/training/${newest.id}`) }, newest.name),
          ` (${ago(newest.last_at)}).`,
        ]
      : [
          h("a", { href: link("/evaluations") }, "Evaluations"),
          " and ",
          h("a", { href: link("/training") }, "training jobs"),
          " show here while they run.",
        ],
  );
}

function jobLine(model) {
  return h(
    "li",
    dot(model.open.state === "queued" ? "waiting" : "running"),
    h(
      "a.happening",
      { href: link(path`/training/${model.id}`) },
      h("b", { title: model.name }, model.name),
      h("span", `training, step ${model.open.step ?? (model.step ?? 0) + 1}, ${model.open.state}`),
    ),
    h("time", model.open.started_at ? duration(Math.max(0, secondsBetween(model.open.started_at, new Date()))) : "waiting"),
  );
}

function evaluationLine(call) {
  return h(
    "li",
    dot("running"),
    h(
      "a.happening",
      { href: link(path`/evaluations/${call.id}`) },
      h("b", { dir: "auto" }, call.display_name || "Evaluation"),
      h("span", "evaluation"),
    ),
    h("time", duration(Math.max(0, secondsBetween(call.started_at, new Date())))),
  );
}
