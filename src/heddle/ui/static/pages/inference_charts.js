// The last minutes of an engine as charts; what was before this page opened is not known to it.
import { h, signal } from "../lib/dom.js";
import { SERIES, legend, lineChart } from "../lib/chart.js";
import { compact, duration } from "../lib/format.js";
import { card } from "../lib/panels.js";

/** How long the page remembers. */
export const HISTORY_SECONDS = 600;
const SHORTEST = 60;

/** Four charts of the rows that the page remembered, with one crosshair. */
export function engineCharts(history) {
  const hover = signal(/** @type {number|null} */ (null));
  const domain = () => {
    const rows = history();
    const last = rows.at(-1)?.time ?? Date.now() / 1000;
    return /** @type {[number, number]} */ ([Math.min(rows[0]?.time ?? last, last - SHORTEST), last]);
  };
  const chart = (heading, series, formatY, wholeY = true) =>
    card(
      heading,
      legend(series.map(({ color, label }) => [color, label])),
      lineChart({
        rows: history,
        x: "time",
        series,
        time: true,
        zero: true,
        wholeY,
        hover,
        height: 160,
        label: `${heading} over the last minutes`,
        formatY,
        domain,
      }),
    );
  return h(
    "div.enginecharts",
    chart(
      "Tokens per second",
      [
        { key: "made", label: "generated", color: SERIES[0] },
        { key: "read", label: "read", color: SERIES[4] },
      ],
      compact,
    ),
    chart(
      "Requests",
      [
        { key: "running", label: "running", color: SERIES[0] },
        { key: "waiting", label: "waiting", color: SERIES[1] },
      ],
      String,
    ),
    chart(
      "KV cache blocks",
      [
        { key: "held", label: "held by requests", color: SERIES[2] },
        { key: "kept", label: "kept for reuse", color: SERIES[5] },
      ],
      compact,
    ),
    chart(
      "Time per step",
      [{ key: "step", label: "mean", color: SERIES[3] }],
      (value) => (value ? duration(value) : "0"),
      false,
    ),
  );
}
