// What the charts of a run are drawn from: one row per step of its model, or per gradient step of one job.
import { date } from "../lib/format.js";

/** @typedef {{step: number, time: number, samples: number, [metric: string]: any}} Row */

/** The rows of a run: the metrics of each job that made a step, what was logged for it, and its position on each axis. */
export function rowsOf(run) {
  const began = run.jobs[0]?.created_at ?? (date(run.created_at)?.getTime() ?? 0) / 1000;
  const logged = new Map(run.checkpoints.map(({ step, metrics }) => [step, metrics]));
  let samples = 0;
  const rows = [];
  if (logged.has(0) && Object.keys(logged.get(0)).length) rows.push({ step: 0, time: 0, samples: 0, ...logged.get(0) });
  for (const job of run.jobs) {
    if (job.state !== "succeeded" || job.step === null) continue;
    samples += job.metrics.num_trajectories ?? 0;
    rows.push({ step: job.step, time: job.ended_at - began, samples, ...logged.get(job.step), ...job.metrics, job: job.id });
  }
  return rows.map((row) => ({
    ...row,
    validation: row["val/reward"] ?? row["validation/reward"] ?? row["test/reward"] ?? null,
  }));
}

const OF_THE_JOB = new Set([
  "reward",
  "reward_std_dev",
  "exception_rate",
  "num_groups_submitted",
  "num_groups_trainable",
  "num_trajectories",
  "num_datums",
]);

/** The rows of one job, from its events; what is the same for all of it is left out. */
export function gradientRows(events) {
  const began = events[0]?.at ?? 0;
  const steps = events.filter(({ type }) => type === "gradient_step");
  return steps.map(({ data, at }, index) => ({
    step: index + 1,
    time: at - began,
    samples: index + 1,
    ...Object.fromEntries(Object.entries(data).filter(([name]) => !OF_THE_JOB.has(name))),
  }));
}

/** The rows with each of the metrics drawn towards what came before it: `share` of the old is kept. */
export function smoothed(rows, metrics, share) {
  if (!share) return rows;
  const held = {};
  return rows.map((row) => {
    const changed = { ...row };
    for (const name of metrics) {
      const value = row[name];
      if (!Number.isFinite(value)) continue;
      held[name] = held[name] === undefined ? value : held[name] * share + value * (1 - share);
      changed[name] = held[name];
    }
    return changed;
  });
}

const NAMES = {
  reward: "Reward",
  "loss/train": "Loss",
  "loss/sum": "Loss, summed over tokens",
  "loss/kl_policy_ref": "KL to the reference",
  "loss/entropy": "Entropy",
  "loss/grad_norm": "Gradient norm",
  tokens_per_second: "Tokens per second",
  "loss/learning_rate": "Learning rate",
  reward_std_dev: "Spread of rewards",
  exception_rate: "Failed rollouts",
  "offpolicy/ratio_mean": "Mean ratio",
  "offpolicy/ratio_max": "Largest ratio",
  "offpolicy/clip_fraction": "Clipped tokens",
  "offpolicy/lag_mean": "Mean lag in steps",
  "offpolicy/lag_max": "Largest lag in steps",
  "loss/probs_corr": "Serving and training agree",
  "agreement/largest_difference": "Largest log-probability difference between serving and training",
  num_trainable_tokens: "Trained tokens",
  num_groups_trainable: "Groups that teach",
  num_tokens: "Tokens",
};
const HIDDEN = new Set([
  "step",
  "time",
  "samples",
  "job",
  "validation",
  "reward",
  "num_datums",
  "num_groups_submitted",
  "num_trajectories",
  "seconds",
]);
const isHidden = (name) =>
  HIDDEN.has(name) || name.startsWith("data/") || (name.startsWith("agreement/") && !(name in NAMES));

/** What a metric is called on a chart. */
export const metricName = (name) => NAMES[name] ?? name;

/** The metrics that have a number in some row, the usual ones first. */
export function metricsOf(rows) {
  const found = new Set();
  for (const row of rows)
    for (const name in row) if (!isHidden(name) && Number.isFinite(row[name])) found.add(name);
  const order = Object.keys(NAMES);
  const place = (name) => (order.includes(name) ? order.indexOf(name) : order.length);
  return [...found].sort((a, b) => place(a) - place(b) || (a < b ? -1 : 1));
}

/** Rows of several runs on one axis: each metric under the run's own prefix, rows in the order of `x`. */
export function merged(runs, x, metrics) {
  if (runs.length === 1) return runs[0].rows;
  const places = new Map();
  runs.forEach(({ rows, prefix }) => {
    for (const row of rows) {
      const target = places.get(row[x]) ?? { [x]: row[x] };
      places.set(row[x], target);
      for (const name of metrics) if (Number.isFinite(row[name])) target[prefix + name] = row[name];
    }
  });
  return [...places.values()].sort((a, b) => a[x] - b[x]);
}

/** What happened when: [[phase, from, to, job], …] in seconds since 1970, the client's own time included. */
export function phasesOf(jobs) {
  const found = [];
  let before = null;
  for (const job of jobs) {
    const end = job.ended_at ?? Date.now() / 1000;
    const marks = [
      ["rollout", before],
      ["waiting", job.created_at],
      ["preparing", job.started_at],
      ["training", job.prepared_at],
      ["publishing", job.trained_at],
    ];
    const known = marks.filter(([, at]) => at !== null);
    known.forEach(([phase, at], index) => {
      const until = known[index + 1]?.[1] ?? end;
      if (until > at) found.push([phase, at, until, job]);
    });
    before = end;
  }
  return found;
}
