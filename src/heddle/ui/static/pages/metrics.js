// What exporters of OpenTelemetry count and measure: one chart per metric, by the values of an attribute.
import { computed, h, signal } from "../lib/dom.js";
import { resource } from "../lib/data.js";
import { int } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { button, loaded, page, searchBox, title } from "../lib/parts.js";
import { projectId, query, setQuery } from "../lib/router.js";
import { serverAddress } from "../lib/setup.js";
import { timeRange, timeRangePicker } from "../lib/timerange.js";
import { metricCard } from "./metrics_chart.js";

const INITIAL = "24h";
const AT_ONCE = 12;
const DAY = 86_400;
const LONGEST = 366 * DAY;

/** The page of metrics. */
export default function Metrics() {
  title("Metrics");
  const range = timeRange(INITIAL);
  const state = resource(() => ["/metrics/query", {}]);
  const most = signal(AT_ONCE);
  const hover = signal(/** @type {number|null} */ (null));
  const words = () => (query("q") ?? "").toLowerCase();
  const found = computed(() =>
    (state.data.value?.metrics ?? []).filter(({ name }) => name.toLowerCase().includes(words())).sort(byWeight));
  const ends = computed(() => endsOf(range.value, found.value));
  return page(
    {
      title: "Metrics",
      actions: [() => (state.data.value?.metrics.length ? timeRangePicker(INITIAL) : null)],
    },
    loaded(state, ({ metrics }) => {
      if (!metrics.length) return nothingYet();
      return [
        h(
          "div.metricfilter",
          searchBox("Filter by name", () => query("q") ?? "", (text) => setQuery({ q: text || null })),
        ),
        h("div.metriccards", () =>
          found.value.length
            ? found.value.slice(0, most.value).map((metric) => metricCard(metric, ends, hover))
            : empty({ title: "No matching metrics" })),
        () =>
          found.value.length > most.value
            ? button(`Show ${int(Math.min(AT_ONCE, found.value.length - most.value))} more`, () => {
                most.value += AT_ONCE;
              })
            : null,
      ];
    }),
    { label: "Metrics" },
  );
}

/** Tokens and money first, then how long things take, then the rest by name. */
function byWeight(one, other) {
  const weight = ({ name }) => ["cost", "token", "duration", "time"].findIndex((word) => name.includes(word)) >>> 0;
  return weight(one) - weight(other) || one.name.localeCompare(other.name);
}

function endsOf({ from, to }, metrics) {
  const end = to ?? Math.floor(Date.now() / 1000);
  const first = Math.min(...metrics.map(({ first_at: at }) => Date.parse(at) / 1000), end - 3600);
  return { from: Math.max(from ?? Math.floor(first), end - LONGEST), to: end };
}

function nothingYet() {
  return empty({
    title: "No metrics yet",
    text: "Send OpenTelemetry metrics here, from GenAI libraries, Claude Code or your own program.",
    code: [
      `export OTEL_EXPORTER_OTLP_ENDPOINT=${serverAddress()}`,
      `export OTEL_EXPORTER_OTLP_HEADERS=project_id=${projectId()}`,
      "export OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
      "export OTEL_METRICS_EXPORTER=otlp",
    ].join("\n"),
  });
}
