// How the metrics, messages and times of alerts are written.
import { duration, int, money, nameOf, number, percent } from "../lib/format.js";

/** The metrics that alerts can watch: the name of each, the format of its values, the unit of its threshold. */
export const METRICS = {
  count: { label: "Number of calls", show: int, unit: "calls", factor: 1 },
  error_share: { label: "Error rate", show: (value) => percent(value), unit: "%", factor: 100 },
  cost: { label: "Cost", show: money, unit: "$", factor: 1 },
  p95_latency_ms: { label: "p95 latency", show: (value) => duration(value == null ? null : value / 1000), unit: "ms", factor: 1 },
  score: { label: "Mean score", show: number, unit: "", factor: 1 },
};

/** The windows that the form offers, in seconds. */
export const WINDOWS = [
  [300, "5 minutes"],
  [900, "15 minutes"],
  [3600, "1 hour"],
  [21_600, "6 hours"],
  [86_400, "1 day"],
  [604_800, "7 days"],
  [2_592_000, "30 days"],
];

/** @type {[number, string][]} */
const UNITS = [
  [86_400, "day"],
  [3600, "hour"],
  [60, "minute"],
  [1, "second"],
];

/** "1 hour", "90 minutes". */
export function windowText(seconds) {
  const [size, name] = UNITS.find(([unit]) => seconds % unit === 0);
  const count = seconds / size;
  return `${count} ${name}${count === 1 ? "" : "s"}`;
}

/** A value of a rule's metric. */
export const valueText = (rule, value) => (value == null ? "" : (METRICS[rule.metric]?.show ?? number)(value));

/** "Error rate > 5.0 % over 1 hour". */
export function ruleText(rule) {
  const what =
    rule.metric === "score"
      ? `Mean of ${rule.scorer}${rule.score_path ? `.${rule.score_path}` : ""}`
      : (METRICS[rule.metric]?.label ?? rule.metric);
  const sign = { ">=": "≥", "<=": "≤" }[rule.operator] ?? rule.operator;
  return `${what} ${sign} ${valueText(rule, rule.threshold)} over ${windowText(rule.window_seconds)}`;
}

/** Which calls a rule looks at, in words; an empty text means all. */
export function scopeText({ filter, query }) {
  const parts = [];
  const ops = filter?.op_names ?? [];
  if (ops.length) parts.push(`op ${ops.map(nameOf).join(", ")}`);
  if (filter?.trace_roots_only) parts.push("root calls");
  const others = Object.entries(filter ?? {}).filter(
    ([name, value]) => value != null && name !== "op_names" && name !== "trace_roots_only",
  );
  if (others.length) parts.push(others.map(([name]) => name.replaceAll("_", " ")).join(", "));
  if (query) parts.push("a query");
  return parts.join(" · ");
}
