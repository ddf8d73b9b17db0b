// Several runs by several measures: as grouped bars, or as polygons around a centre.
import { h } from "./dom.js";
import { shareOf, writtenScale } from "./runs.js";

const SIZE = 320;
const RADIUS = 108;
const MOST_LETTERS = 24;

/**
 * Polygons around a centre. Axes are {name, text, scale: [low, high]}; series are {label, color, values: {name: value}}.
 * @param {{axes: {name: string, text: string, scale: [number, number]}[], series: any[], label: string}} options
 */
export function radar({ axes, series, label }) {
  const place = (index, share) => {
    const angle = (index / axes.length) * 2 * Math.PI - Math.PI / 2;
    return [SIZE / 2 + Math.cos(angle) * RADIUS * share, SIZE / 2 + Math.sin(angle) * RADIUS * share];
  };
  const ring = (share) =>
    `M${axes
      .map((_, index) =>
        place(index, share)
          .map((value) => value.toFixed(1))
          .join(" "),
      )
      .join("L")}Z`;
  const shape = ({ values }) =>
    `M${axes
      .map(({ name, scale }, index) =>
        place(index, Math.max(0, Math.min(1, shareOf(values[name], scale))))
          .map((value) => value.toFixed(1))
          .join(" "),
      )
      .join("L")}Z`;
  return h(
    "svg.chart.radar",
    { role: "img", "aria-label": label, viewBox: `0 0 ${SIZE} ${SIZE}`, width: SIZE, height: SIZE },
    [0.25, 0.5, 0.75, 1].map((share) => h("path.ring", { d: ring(share) })),
    axes.map(({ name, text, scale }, index) => {
      const [x, y] = place(index, 1);
      const [textX, textY] = place(index, 1.14);
      const anchor = Math.abs(textX - SIZE / 2) < 20 ? "middle" : textX > SIZE / 2 ? "start" : "end";
      return [
        h("line.grid", { x1: SIZE / 2, y1: SIZE / 2, x2: x, y2: y }),
        h("text.axis", { x: textX, y: textY + 4, "text-anchor": anchor },
          text.length > MOST_LETTERS ? `…${text.slice(1 - MOST_LETTERS)}` : text,
          h("title", `${text}, ${writtenScale(name, scale)}`)),
      ];
    }),
    series.map((entry) => h("path.area", { d: shape(entry), stroke: entry.color, fill: entry.color }, h("title", entry.label))),
  );
}

/** One group of bars per measure, one bar per run. */
export function groupedBars({ axes, series, label, format }) {
  return h(
    "div.groupedbars",
    { role: "img", "aria-label": label },
    axes.map(({ name, text, scale }) =>
      h(
        "div.bargroup",
        h("span.one-line", { title: text }, text, " ", h("small.faint", writtenScale(name, scale))),
        h(
          "div",
          series.map(({ label: run, color, values }) =>
            h(
              "div.barline",
              { title: `${run}: ${format(name, values[name])}` },
              h(
                "span.bartrack",
                h("i", { style: { width: `${Math.max(0, Math.min(1, shareOf(values[name], scale))) * 100}%`, background: color } }),
              ),
              h("span.number", values[name] == null ? "–" : format(name, values[name])),
            ),
          ),
        ),
      ),
    ),
  );
}
