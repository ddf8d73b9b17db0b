// Runs against a baseline, row by row: which rows got worse, by how much, and how sure a measure's difference is.
import { onCleanup, signal } from "./dom.js";
import { scaleOf } from "./runs.js";
import { interval, isScore, lessIsBetter, measuresInOrder, paired, verdict } from "./statistics.js";

/**
 * What `loadValues` answers, by run; runs that it does not know have no values. Rows are keys: a digest, and which of
 * the rows with this content it is.
 * @param {{rows: string[], indexes: (number|null)[], runs: any[]}} answer
 */
export function comparisonOf(answer) {
  const byRun = new Map(answer.runs.map((run) => [run.id, run]));
  const names = measuresInOrder(answer.runs.flatMap((run) => Object.keys(run.means ?? {})));
  const column = (run, name) => byRun.get(run)?.values?.[name] ?? null;
  return {
    rows: answer.rows,
    index: (row) => answer.indexes[row] ?? row,
    names,
    mean: (run, name) => byRun.get(run)?.means?.[name] ?? null,
    scale: (name) => scaleOf(name, answer.runs),
    byRun,
    column,
    value: (run, name, row) => column(run, name)?.[row] ?? null,
    scores: names.filter((name) => isScore(name) && !lessIsBetter(name)),
  };
}

/** How many rows every one of some runs has. */
export function commonRows(comparison, ids) {
  const has = (id, row) => comparison.value(id, "error_share", row) !== null;
  return comparison.rows.reduce((count, _, row) => count + Number(ids.every((id) => has(id, row))), 0);
}

/** How much better a run's row is than the baseline's by a measure; null where one of them has no value. */
export function gain(comparison, name, baseline, run, row) {
  const [before, after] = [comparison.value(baseline, name, row), comparison.value(run, name, row)];
  if (before === null || after === null) return null;
  return lessIsBetter(name) ? before - after : after - before;
}

/**
 * The filters of rows: [value, text, test of the gains of the runs that are looked at and of their values].
 * @type {[string, string, (row: any) => boolean][]}
 */
export const ROW_FILTERS = [
  ["regressions", "Regressions", ({ gains }) => gains.some((value) => value < 0)],
  ["improvements", "Improvements", ({ gains }) => gains.some((value) => value > 0)],
  ["disagreements", "Disagreements", ({ values }) => new Set(values).size > 1],
  ["failed", "Failed", ({ failed }) => failed],
  ["all", "All", () => true],
];

/**
 * Every row with its gains by a measure: {row, digest, gains, worst, best, spread, values, failed}.
 * @param {any} comparison
 * @param {{name: string, baseline: string, others: string[]}} looked
 */
export function judged(comparison, { name, baseline, others }) {
  return comparison.rows.map((digest, row) => {
    const gains = others.map((run) => gain(comparison, name, baseline, run, row)).filter((value) => value !== null);
    const values = [baseline, ...others].map((run) => comparison.value(run, name, row)).filter((value) => value !== null);
    return {
      row,
      digest,
      gains,
      values,
      worst: gains.length ? Math.min(...gains) : 0,
      best: gains.length ? Math.max(...gains) : 0,
      spread: values.length ? Math.max(...values) - Math.min(...values) : 0,
      failed: [baseline, ...others].some((run) => (comparison.value(run, "error_share", row) ?? 0) > 0),
    };
  });
}

/**
 * Orders of rows: [value, text, compare].
 * @type {[string, string, (one: any, other: any) => number][]}
 */
export const ROW_ORDERS = [
  ["worst", "worst first", (one, other) => one.worst - other.worst],
  ["best", "best first", (one, other) => other.best - one.best],
  ["spread", "widest spread", (one, other) => other.spread - one.spread],
  ["low", "lowest first", (one, other) => Math.min(...one.values, Infinity) - Math.min(...other.values, Infinity)],
  ["row", "by row", (one, other) => one.row - other.row],
];

/**
 * The differences of every measure and run to the baseline, with intervals that come in one after the other; a map of
 * signals by "run measure".
 */
export function differences(comparison, baseline, others) {
  const found = new Map();
  const abort = new AbortController();
  for (const name of comparison.names) {
    for (const run of others) {
      const pair = paired(comparison.column(baseline, name), comparison.column(run, name));
      const change = pair.run === null || pair.baseline === null ? null : pair.run - pair.baseline;
      found.set(`${run} ${name}`, signal({ ...pair, change, interval: null, sure: "" }));
    }
  }
  const work = async () => {
    for (const [key, held] of found) {
      const range = await interval(held.peek().differences, abort.signal);
      if (abort.signal.aborted) return;
      const name = key.slice(key.indexOf(" ") + 1);
      if (range) held.value = { ...held.peek(), interval: range, sure: verdict(name, range) };
    }
  };
  work();
  onCleanup(() => abort.abort());
  return found;
}

/** The rows' content, asked for as they come into view, so many at a time: `need(row)` is a signal of a row or null. */
export function rowContents(load, batch = 50) {
  const held = new Map();
  let waiting = [];
  let timer = 0;
  const abort = new AbortController();
  onCleanup(() => {
    abort.abort();
    clearTimeout(timer);
  });
  const send = async () => {
    timer = 0;
    const digests = waiting.splice(0, batch);
    if (waiting.length) timer = setTimeout(send, 0);
    try {
      for (const found of await load(digests, abort.signal)) if (held.has(found.row)) held.get(found.row).value = found;
    } catch (error) {
      if (error.name !== "AbortError") for (const digest of digests) held.get(digest).value = { problem: error.message };
    }
  };
  return (digest) => {
    if (!held.has(digest)) {
      held.set(digest, signal(null));
      waiting = [digest, ...waiting].slice(0, 400);
      timer ||= setTimeout(send, 20);
    }
    return held.get(digest);
  };
}

const EXPECTED = ["target", "expected", "expected_output", "expected_answer", "answer", "ground_truth", "reference", "label"];

/** {input, expected} of a row; expected is undefined where no column has a name for it. */
export function splitRow(row) {
  if (row === null || typeof row !== "object" || Array.isArray(row)) return { input: row, expected: undefined };
  const name = EXPECTED.find((key) => key in row);
  if (!name) return { input: row, expected: undefined };
  const { [name]: expected, ...input } = row;
  return { input, expected };
}
