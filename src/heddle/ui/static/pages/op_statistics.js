// How the calls of an op went over time.
import { h, signal } from "../lib/dom.js";
import { postProject, resource } from "../lib/data.js";
import { legend, lineChart, SERIES } from "../lib/chart.js";
import { date, duration, int, percent } from "../lib/format.js";
import { card, tile } from "../lib/panels.js";
import { loaded, segments } from "../lib/parts.js";
import { go, link, query, setQuery } from "../lib/router.js";
import { stackedBars } from "../lib/stackedbars.js";

const SPANS = { "24h": 86_400, "7d": 7 * 86_400, "30d": 30 * 86_400 };

/** Calls, errors and latency of one version, or of all versions of the op. */
export function statisticsView(object, reference) {
  const span = () => (query("t") in SPANS ? query("t") : "7d");
  const scope = () => query("of") ?? "version";
  const state = resource(
    () => [span(), scope()],
    async ([name, of], abort) => {
      const end = Math.ceil(Date.now() / 1000);
      const opName = of === "op" ? `${reference.split(":").slice(0, -1).join(":")}:*` : reference;
      return postProject(
        "/calls/stats",
        {
          start: new Date((end - SPANS[name]) * 1000).toISOString(),
          end: new Date(end * 1000).toISOString(),
          granularity: SPANS[name] / (name === "7d" ? 56 : name === "24h" ? 48 : 60),
          filter: { op_names: [opName] },
          call_metrics: [
            { metric: "call_count" },
            { metric: "error_count" },
            { metric: "latency_ms", aggregations: ["avg"], percentiles: [50, 95] },
          ],
        },
        abort,
      );
    },
  );
  return [
    h(
      "div.spread",
      segments(
        "Time range",
        Object.keys(SPANS).map((name) => [name, name]),
        span,
        (name) => setQuery({ t: name }),
      ),
      segments(
        "Calls of",
        [
          ["version", `v${object.version_index}`],
          ["op", "All versions"],
        ],
        scope,
        (name) => setQuery({ of: name === "version" ? null : name }),
      ),
    ),
    h(
      "div.statistics",
      loaded(state, (found) => charts(found, object)),
    ),
  ];
}

function charts({ call_buckets: buckets, granularity }, object) {
  const rows = buckets.map((bucket) => {
    const errors = bucket.sum_error_count ?? 0;
    return {
      time: date(bucket.timestamp).getTime() / 1000,
      good: (bucket.sum_call_count ?? 0) - errors,
      errors,
      p50: seconds(bucket.p50_latency_ms),
      p95: seconds(bucket.p95_latency_ms),
    };
  });
  const calls = rows.reduce((sum, row) => sum + row.good + row.errors, 0);
  const errors = rows.reduce((sum, row) => sum + row.errors, 0);
  const timed = rows.filter((row) => row.p50 !== null);
  const middle = timed.map((row) => row.p50).sort((one, other) => one - other)[Math.floor(timed.length / 2)] ?? null;
  const hover = signal(null);
  const onrange = (from, to) => go(link("/traces", { op: object.object_id, t0: Math.floor(from), t1: Math.ceil(to) }));
  const series = [
    { key: "p50", label: "p50", color: SERIES[0] },
    { key: "p95", label: "p95", color: SERIES[1], dashed: true },
  ];
  return [
    h(
      "div.tiles",
      tile("Calls", int(calls)),
      tile("Errors", int(errors), calls ? percent(errors / calls) : ""),
      tile("p50 latency", duration(middle) || "–", "middle of the intervals"),
      tile("p95 latency", duration(Math.max(0, ...timed.map((row) => row.p95)) || null) || "–", "worst interval"),
    ),
    card(
      "Calls",
      legend([
        [SERIES[0], "success"],
        ["var(--error)", "error"],
      ]),
      stackedBars({
        rows: () => rows,
        step: () => granularity,
        series: [
          { key: "good", label: "success", color: SERIES[0] },
          { key: "errors", label: "error", color: "var(--error)" },
        ],
        label: "Calls over time",
        height: 180,
        formatY: int,
        hover,
        onrange,
        onpick: onrange,
      }),
    ),
    card(
      "Latency",
      legend(series.map(({ color, label }) => [color, label])),
      lineChart({
        rows: () => (timed.length ? rows : []),
        x: "time",
        series: series.map((entry) => ({ ...entry, dots: true })),
        label: "Latency over time",
        height: 180,
        time: true,
        formatY: duration,
        hover,
        onrange,
        step: granularity,
      }),
    ),
    h("p.dim", h("a", { href: link("/traces", { op: object.object_id }) }, "All calls of this op")),
  ];
}

const seconds = (milliseconds) => (milliseconds == null ? null : milliseconds / 1000);
