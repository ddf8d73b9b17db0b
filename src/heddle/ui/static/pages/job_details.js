// One job of a run in detail: its gradient steps, what it trained on, its log and its settings.
import { lineText } from "../lib/line.js";
import { h } from "../lib/dom.js";
import { lineChart, SERIES } from "../lib/chart.js";
import { date, duration, int, nameOf, number, plural } from "../lib/format.js";
import { facts } from "../lib/panels.js";
import { dot, icon, loaded, timeNode } from "../lib/parts.js";
import { json } from "../lib/json.js";
import { link, path, setQuery } from "../lib/router.js";
import { gradientRows, metricName, metricsOf } from "./job_data.js";

const SHAPES = {
  queued: "waiting",
  running: "running",
  publishing: "running",
  failed: "failed",
  cancelled: "cancelled",
  succeeded: "success",
};
const MOST_CHARTS = 6;
const MOST_LINES = 400;

function jobPicker(run, chosen) {
  const text = (job) => `${job.step === null ? "no step yet" : `step ${job.step}`}, ${job.state}`;
  return h(
    "label.inline",
    h("span.dim", "Job"),
    h(
      "select",
      {
        "aria-label": "Job",
        onchange: (event) => setQuery({ job: event.target.value === run.peek().jobs.at(-1).id ? null : event.target.value }),
      },
      () =>
        [...run.value.jobs]
          .reverse()
          .slice(0, 500)
          .map((job) => h("option", { value: job.id, selected: job.id === chosen.value?.id }, text(job))),
    ),
  );
}

/** What one job did: its times, the contents of its data, and the metrics of its gradient steps. */
export function jobTab(run, chosen, events) {
  return h(
    "div.tabcontent",
    h("div.bar-of-tools.flush", jobPicker(run, chosen), () =>
      chosen.value?.kind === "rl"
        ? h(
            "a.button",
            { href: link("/trajectories", { model: run.value.id, step: chosen.value.step, job: chosen.value.id }) },
            icon("trajectory"),
            "Its trajectories",
          )
        : null,
    ),
    () => chosen.value && jobFacts(chosen.value),
    loaded(events, (data) => [
      data.config?.settings ? facts(recipe(data.config.settings)) : null,
      trainedOn(data.config?.source),
      counts(data.events),
      agreement(data.events),
      gradientCharts(data.events),
    ]),
  );
}

function jobFacts(job) {
  const span = (from, to) => (from !== null && to !== null ? duration(Math.max(0, to - from)) : null);
  const isTinker = job.kind === "tinker";
  return facts([
    ["State", h("span.state", dot(SHAPES[job.state]), job.state)],
    ["Trained by", isTinker ? "Tinker's protocol" : null],
    ["Created from step", job.parent_step === null ? null : int(job.parent_step)],
    ["Gradient steps", `${int(job.gradient_steps)}${job.planned === null ? "" : ` of ${int(job.planned)}`}`],
    ["Started by", job.created_by],
    [isTinker ? "Begun" : "Queued", timeNode(job.created_at)],
    ["Waited", isTinker ? null : span(job.created_at, job.started_at)],
    ["Prepared in", isTinker ? null : span(job.started_at, job.prepared_at)],
    [isTinker ? "Newest step after" : "Trained in", span(job.prepared_at, job.trained_at)],
    ["Published in", isTinker ? null : span(job.trained_at, job.ended_at)],
    ["Error", job.error && h("span.worse", { dir: "auto" }, job.error)],
    ["Id", h("code", job.id)],
  ]);
}

/** How a job learned, from its settings: what to show as facts. */
export function recipe(settings) {
  if (!settings) return [];
  const { loss, learning_rate: rate, max_steps_off_policy: bound } = settings;
  const options = Object.entries(settings.loss_fn_config ?? {}).map(([name, value]) => `${name} ${number(value)}`);
  const { beta1, beta2, eps, weight_decay: decay, grad_clip_norm: norm } = settings;
  const adam = `AdamW, betas ${beta1} and ${beta2}, eps ${eps}, weight decay ${decay}, gradient norm ${norm ? `up to ${norm}` : "as it is"}`;
  return [
    ["Loss", loss ? [loss, ...options].join(", ") : settings.beta ? `dpo, beta ${number(settings.beta)}` : "cross_entropy"],
    ["Learning rate", Array.isArray(rate) ? `${number(rate[0])} to ${number(rate.at(-1))}` : number(rate)],
    ["Rollouts", loss && bound != null ? `at most ${plural(bound, "step")} old` : null],
    ["Corrected by", settings.importance_correction ?? null],
    ["Optimizer", beta1 === undefined ? null : adam],
  ];
}

/** The calls that a job was made from, with the way back to them. */
function trainedOn(source) {
  if (!source) return null;
  const { parent_ids: runs, op_names: ops } = source.filter ?? {};
  const { counts: found, reward, training_data_url: file } = source;
  if (file) return facts([["Trained on", h("code", { dir: "auto" }, file)], ["Rows", int(source.rows)]]);
  return facts([
    [
      "Trained on",
      runs
        ? h("a.ref", { href: link(path`/evaluations/${runs[0]}`) }, "the answers of an evaluation run")
        : `calls of ${ops ? ops.map(nameOf).join(", ") : "every op"}`,
    ],
    ["Reward", [reward.feedback_type, reward.path].filter(Boolean).join(", ")],
    ["Calls", found && `${int(found.calls)}, ${int(found.trajectories)} of them in ${plural(found.groups, "group")}`],
  ]);
}

function counts(events) {
  const started = events.find(({ type }) => type === "training_started");
  if (!started) return h("p.dim", "The data is being prepared.");
  const shown = Object.entries(started.data).filter(([name, value]) => value && !name.startsWith("ignored/"));
  return [facts(shown.map(([name, value]) => [words(name), number(value)])), nothingLearned(started.data)];
}

/** How the log-probabilities of serving and of training compare, for the same weights. */
function agreement(events) {
  const found = events.findLast(({ data }) => data?.["agreement/tokens"])?.data;
  if (!found) return null;
  const of = (name) => found[`agreement/${name}`];
  const equal = of("equal_tokens") === of("tokens") ? "all" : int(of("equal_tokens"));
  return facts([
    [
      "Served and trained",
      `${equal} of ${int(of("tokens"))} log-probabilities are bitwise equal, largest difference ${number(of("largest_difference"))}` +
        ` (${of("bits")}-bit weights, ${plural(of("threads"), "thread")})`,
    ],
  ]);
}

/** Why a job made a step equal to the previous one: not a failure, but not obvious. */
function nothingLearned(data) {
  if (data.num_groups_trainable !== 0) return null;
  const why =
    data["data/equal_reward_groups"] === data.num_groups_submitted
      ? "all answers of each group got the same reward, so none was better."
      : data["data/dropped_choices_without_logprobs"]
        ? "the answers were stored without token probabilities. Trainable models return them for rollouts; request them from other models."
        : "no group had answers to compare.";
  return h("p.worse", `Nothing was learned: ${why}`);
}

const words = (name) => {
  const text = name
    .replace(/^data\//, "")
    .replace(/^num_/, "")
    .replaceAll("_", " ");
  return text[0].toUpperCase() + text.slice(1);
};

function gradientCharts(events) {
  const rows = gradientRows(events);
  if (rows.length < 2) return null;
  return h(
    "div.multiples",
    metricsOf(rows)
      .slice(0, MOST_CHARTS)
      .map((name, index) =>
        h(
          "section",
          h("h3", metricName(name)),
          lineChart({
            rows: () => rows,
            x: "step",
            series: [{ key: name, label: metricName(name), color: SERIES[index % SERIES.length] }],
            height: 130,
            label: `${metricName(name)} by gradient step`,
          }),
        ),
      ),
  );
}

/** The events of one job as lines, the newest first, with what clients logged for the model. */
export function logTab(run, chosen, events) {
  return h(
    "div.tabcontent",
    h("div.bar-of-tools.flush", jobPicker(run, chosen)),
    loaded(events, (data) => {
      const lines = [
        ...data.events.map(eventLine),
        ...run.value.logs.filter(({ step }) => step === chosen.value?.step).map(clientLine),
      ].sort((a, b) => b.at - a.at);
      if (!lines.length) return h("p.dim", "Waiting for the data of the job. Its log appears once it is prepared.");
      return h(
        "ol.loglines",
        { tabindex: 0, "aria-label": "Log" },
        lines
          .slice(0, MOST_LINES)
          .map(({ at, kind, text, isBad }) =>
            h(
              "li",
              { class: isBad ? "worse" : "" },
              h("time", logTime(at)),
              h("b", kind),
              h("span", { dir: "auto", title: text }, text),
            ),
          ),
      );
    }),
  );
}

const clock = new Intl.DateTimeFormat("en-GB", {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  fractionalSecondDigits: 3,
});
const logTime = (at) => clock.format(date(at * 1000));

function eventLine({ type, data, at }) {
  const figures = Object.entries(data)
    .filter(([name]) => name !== "error_message")
    .map(([name, value]) => `${name}=${typeof value === "number" ? number(value) : lineText(value, 60)}`);
  return {
    at,
    kind: type.replaceAll("_", " "),
    text: data.error_message ?? figures.join("  "),
    isBad: type === "training_failed",
  };
}

function clientLine({ split, groups, trajectories, metrics, created_at: at }) {
  const figures = Object.entries(metrics).map(([name, value]) => `${name}=${number(value)}`);
  return {
    at,
    kind: `logged ${split}`,
    text: `${plural(groups, "group")}, ${plural(trajectories, "trajectory", "trajectories")}  ${figures.join("  ")}`,
    isBad: false,
  };
}

/** The settings that the chosen job was taken in with, and the model's own. */
export function configTab(run, events) {
  return h(
    "div.tabcontent",
    () =>
      facts([
        ["Base model", h("span.mono", run.value.base_model)],
        ["LoRA rank", int(run.value.lora.rank)],
        ["LoRA alpha", number(run.value.lora.alpha)],
        ["Adapted", (run.value.lora.target_modules ?? []).join(", ")],
        ["Created by", run.value.created_by],
        ["Created", timeNode(run.value.created_at)],
        ["Call of the newest job", h("a", { href: link("/traces", { op: "heddle.training_job" }) }, "heddle.training_job")],
        ["Model id", h("code", run.value.id)],
      ]),
    loaded(events, (data) => json(data.config)),
  );
}
