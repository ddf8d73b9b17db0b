// Recent failures and running work, next to the charts of the overview.
import { h, onCleanup } from "../lib/dom.js";
import { get, lines, postProject, resource } from "../lib/data.js";
import { ago, cut, duration, int, secondsBetween } from "../lib/format.js";
import { card } from "../lib/panels.js";
import { dot, loaded, timeNode } from "../lib/parts.js";
import { link, path, projectId } from "../lib/router.js";
import { sameRange } from "../lib/timerange.js";

const SHOWN = 8;
const status = (word) => ({ $eq: [{ $getField: "summary.weave.status" }, { $literal: word }] });

/** The errors of a range that were seen last, alike ones together, each a link to its place on the page of errors. */
export function newestErrors(range) {
  const state = resource(
    () => ({ from: range.value.from, to: range.value.to, sort: "last", limit: SHOWN }),
    (asked, abort) => postProject("/_ui/api/errors", asked, abort),
  );
  const all = h("a", { href: () => link("/errors", sameRange(range.value)) }, "All errors");
  return card(
    "Newest errors",
    all,
    loaded(state, ({ groups }) =>
      groups.length
        ? h(
            "ul.happenings",
            groups.map((group) => errorLine(group, range)),
          )
        : h("p.nothing", "No failed calls in this time range."),
    ),
  );
}

function errorLine(group, range) {
  const reason = [group.type, group.message].filter(Boolean).join(": ");
  return h(
    "li",
    dot("error"),
    h(
      "a.happening",
      { href: () => link("/errors", { ...sameRange(range.value), show: `${group.group} ${group.op}` }) },
      h("b", { dir: "auto", title: group.op }, group.op),
      h("span", { dir: "auto", title: cut(reason, 600) }, reason),
    ),
    h("span.count", { title: "Calls with this error" }, int(group.calls)),
    timeNode(group.last, ago),
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
    "Running now",
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
    "No training jobs or evaluations are running. ",
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
          " appear here while they run.",
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
