// One improvement: its timeline from the weak calls to the watch, with links to everything that it made.
import { computed, h, onCleanup, signal, untrack } from "../lib/dom.js";
import { postProject, resource } from "../lib/data.js";
import { attempt } from "../lib/dialog.js";
import { SERIES, lineChart } from "../lib/chart.js";
import { duration, exact, int, number, plural } from "../lib/format.js";
import { card, facts, refLink, tile } from "../lib/panels.js";
import { button, dot, failure, header, skeleton, title } from "../lib/parts.js";
import { link, path } from "../lib/router.js";
import { beforeAfter, isOpen, resultOf, stateOf } from "./improvements.js";

const PAUSE = 1500;

/** The page of an improvement. */
export default function Improvement({ improvement: id }) {
  title("Improvement");
  const state = resource(() => ["/improvements/read", { id }]);
  const found = computed(() => state.data.value?.improvement ?? null);
  const timer = setInterval(() => {
    if (!document.hidden && found.peek() && isOpen(found.peek())) state.reload();
  }, PAUSE);
  onCleanup(() => clearInterval(timer));
  const isThere = computed(() => found.value !== null);
  return h(
    "div.page",
    () => head(found.value, state),
    () =>
      state.error.value && !isThere.value
        ? failure(state.error.value, state.reload)
        : isThere.value
          ? untrack(() => body(found))
          : skeleton(),
  );
}

function head(improvement, state) {
  const crumbs = [["Improvements", link("/improvements")]];
  if (!improvement) return header({ crumbs, title: "Improvement" });
  const stop = async () => {
    await attempt(() => postProject("/improvements/cancel", { id: improvement.id }), "Stopping; results so far are kept");
    state.reload();
  };
  return header({
    crumbs,
    title: h("span", { dir: "auto" }, improvement.name ?? `Improvement of ${improvement.model}`),
    extra: stateOf(improvement),
    actions: isOpen(improvement)
      ? button(improvement.state === "watching" ? "Stop watching" : "Stop", stop, { kind: "danger", iconName: "stop", needs: "write" })
      : null,
  });
}

function body(found) {
  const hover = signal(/** @type {number|null} */ (null));
  const points = () => steps(found.value, "rollouts").map(({ number: step, result }) => ({ step, reward: result.reward ?? null }));
  const hasCurve = computed(() => points().length > 1);
  return h(
    "div.scroll",
    { tabindex: 0, role: "region", "aria-label": "Content" },
    h(
      "div.improvement",
      () => problemOf(found.value),
      () => tiles(found.value),
      () =>
        hasCurve.value
          ? card(
              "Reward of each training step",
              null,
              lineChart({
                rows: points,
                x: "step",
                series: [{ key: "reward", name: "mean reward", color: SERIES[0] }],
                label: "Reward of each training step",
                hover,
                wholeX: true,
                zero: true,
                height: 160,
              }),
            )
          : null,
      card("Timeline", null, () => h("ol.timeline", found.value.steps.map((step) => entry(step, found.value)))),
    ),
  );
}

const steps = (improvement, name) => improvement.steps.filter((step) => step.name === name);

function problemOf({ error, reason, state }) {
  const message = state === "failed" ? error : reason;
  return message ? failure({ message, status: 0 }, null) : null;
}

function tiles(improvement) {
  const [baseline, promotion] = [resultOf(improvement, "baseline"), resultOf(improvement, "promotion")];
  const at = promotion.step ?? steps(improvement, "training").at(-1)?.result.step;
  return h(
    "div.tiles",
    tile("Held out", beforeAfter(improvement, "held_out") || "–", "before and after"),
    tile("General", beforeAfter(improvement, "general") || "–", improvement.request.general ? "before and after" : "no evaluation set"),
    tile("Step", at === undefined ? "–" : `${baseline.step} → ${at}`, improvement.model),
    tile("CPU time", duration(improvement.spent_seconds), `of ${duration(improvement.budget_seconds)}`),
  );
}

const NAMES = {
  select: "Weak calls",
  baseline: "Previous policy",
  rollouts: "Rollouts",
  training: "Training",
  gate: "Gate",
  promotion: "Promotion",
  watch: "Watch",
};
const SHAPES = { running: "running", succeeded: "success", stopped: "cancelled" };

function entry(step, improvement) {
  const shape = step.state === "running" && !isOpen(improvement) ? "cancelled" : SHAPES[step.state];
  return h(
    "li",
    dot(step.name === "gate" && step.result.passed === false ? "error" : shape),
    h("b", NAMES[step.name], step.number ? ` ${int(step.number)}` : ""),
    facts(DETAILS[step.name](step.result, improvement)),
    h("time", { title: `began ${exact(step.started_at)}` }, step.name === "watch" ? "" : duration(step.seconds)),
  );
}

const run = (found) => found && h("a", { href: link(path`/evaluations/${found.call_id}`) }, number(found.score));
const dataset = (found) => found && h("span", refLink(found.ref), ` ${plural(found.rows, "chat")}`);

const DETAILS = {
  select: (result) => [
    ["Weak calls", result.calls === undefined ? null : int(result.calls)],
    ["Trained on", dataset(result.train)],
    ["Held out", dataset(result.held_out)],
    ...Object.entries(result.skipped ?? {}).map(([reason, count]) => [`Skipped: ${reason}`, int(count)]),
  ],
  baseline: (result) => [
    ["Step", result.step],
    ["Held out", run(result.held_out)],
    ["General", run(result.general)],
  ],
  rollouts: (result) => [
    ["Reward", result.reward === undefined ? null : number(result.reward)],
    ["Answers", result.call_id && h("a", { href: link(path`/traces/${result.call_id}`) }, int(result.answers))],
    ["Chats with unequal answers", result.uneven],
  ],
  training: (result, { model_id }) => [
    ["Step", result.step],
    ["Job", result.job_id && h("a", { href: link(path`/training/${model_id}`, { job: result.job_id }) }, result.job_id.slice(0, 8))],
  ],
  gate: (result) => [
    ["Held out", run(result.held_out)],
    ["General", run(result.general)],
    ...(result.conditions ?? []).map(({ set, condition, value, refuses }) => [
      refuses ? "Refused" : "Passed",
      `${condition} (${set.replace("_", "-")}): ${number(value)}`,
    ]),
  ],
  promotion: (result) => [[result.reason ? "Not promoted" : "Name now uses step", result.reason ?? result.step]],
  watch: (result, { request }) => [
    ["Monitor", request.watch?.monitor],
    ["Scores", result.scores === undefined ? null : int(result.scores)],
    ["Mean", result.mean == null ? null : number(result.mean)],
    ["Rolled back below", request.watch && number(request.watch.below)],
  ],
};
