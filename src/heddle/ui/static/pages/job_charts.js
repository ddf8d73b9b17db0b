// The curves of a run, alone or with others: one axis, one crosshair, smoothed and scaled alike.
import { computed, h, signal } from "../lib/dom.js";
import { SERIES, legend, lineChart } from "../lib/chart.js";
import { compact, cut, duration, int, number } from "../lib/format.js";
import { card, field } from "../lib/panels.js";
import { button, segments } from "../lib/parts.js";
import { query, setQuery } from "../lib/router.js";
import { merged, metricName, metricsOf, smoothed } from "./job_data.js";

const FIRST = 6;
const MOST_NAMED = 12;
const AXES = { step: "step", time: "after", samples: "trajectories" };

/** The controls that all charts follow; their state is in the address. */
export function chartControls() {
  const slider = h("input", {
    type: "range",
    min: 0,
    max: 0.95,
    step: 0.05,
    value: () => query("smooth") ?? 0,
    "aria-label": "Smoothing",
    oninput: (event) => setQuery({ smooth: Number(event.target.value) || null }),
  });
  return h(
    "div.chartcontrols",
    segments(
      "Horizontal axis",
      [
        ["step", "Step"],
        ["time", "Time"],
        ["samples", "Samples"],
      ],
      axis,
      (value) => setQuery({ x: value === "step" ? null : value }),
    ),
    h(
      "label",
      h("span", "Smoothing"),
      slider,
      h("output", () => Number(query("smooth") ?? 0).toFixed(2)),
    ),
    h(
      "label",
      h("input", {
        type: "checkbox",
        checked: () => query("log") === "1",
        onchange: (event) => setQuery({ log: event.target.checked ? "1" : null }),
      }),
      "Log scale",
    ),
  );
}

const axis = () => (query("x") in AXES ? query("x") : "step");

/**
 * Every chart of a run: `runs()` are {name, rows}, the first one is the page's own; `open(step)` shows what a step was
 * trained on.
 * @param {() => {name: string, rows: any[]}[]} runs
 * @param {((step: number) => void) | null} open
 */
export function curves(runs, open) {
  const hover = signal(/** @type {number|null} */ (null));
  const names = computed(() => JSON.stringify([...new Set(runs().flatMap(({ rows }) => metricsOf(rows)))]));
  const prepared = computed(() => {
    const metrics = [...JSON.parse(names.value), "reward"];
    const share = Math.min(0.99, Math.max(0, Number(query("smooth")) || 0));
    return runs().map(({ name, rows }, index) => ({
      name,
      prefix: index ? `${index} ` : "",
      rows: smoothed(rows, metrics, share),
    }));
  });
  const rows = computed(() =>
    merged(prepared.value, axis(), [...JSON.parse(names.value), "reward", "reward_std_dev", "validation"]),
  );
  const shared = () => ({
    rows: () => rows.value,
    x: axis(),
    nameX: AXES[axis()],
    wholeX: axis() !== "time",
    formatX: axis() === "time" ? elapsed : compact,
    hover,
    onpick: open && axis() === "step" ? (row) => open(row.step) : null,
    opens: "its trajectories",
    logarithmic: () => query("log") === "1",
  });
  const hasReward = computed(() => runs().some(({ rows: own }) => own.some((row) => Number.isFinite(row.reward))));
  return [
    () => skippedNote(runs()[0]?.rows ?? []),
    () => (hasReward.value ? rewardCard(prepared, shared()) : metricCard("loss/train", prepared, shared(), 300, 0)),
    h("div.multiples", () =>
      shown(names.value, hasReward.value).map((name, index) => metricCard(name, prepared, shared(), 150, index + 2)),
    ),
    () => moreButton(names.value, hasReward.value),
  ];
}

/** Which steps have no point in the charts of the training, and why. */
function skippedNote(rows) {
  const skipped = rows.filter((row) => row.num_groups_trainable === 0).map(({ step }) => int(step));
  if (!skipped.length) return null;
  const [shown, rest] = [skipped.slice(0, MOST_NAMED), skipped.length - MOST_NAMED];
  return h("p.dim", `${skipped.length === 1 ? "Step" : "Steps"} ${shown.join(", ")}${rest > 0 ? ` and ${int(rest)} more` : ""} `
    + `${skipped.length === 1 ? "was" : "were"} skipped: all rewards of each group were equal, so there was nothing to learn.`);
}

/** What has a small chart: all but rewards, and the loss where it has the large one. */
const drawable = (names, hasReward) =>
  JSON.parse(names).filter(
    (name) => !name.endsWith("/reward") && !name.endsWith("/reward_std_dev") && (hasReward || name !== "loss/train"),
  );
const shown = (names, hasReward) => drawable(names, hasReward).slice(0, query("metrics") === "all" ? undefined : FIRST);

function moreButton(names, hasReward) {
  const count = drawable(names, hasReward).length - FIRST;
  if (count <= 0) return null;
  const isAll = query("metrics") === "all";
  return h(
    "div",
    button(isAll ? "Fewer metrics" : `${int(count)} more metrics`, () => setQuery({ metrics: isAll ? null : "all" })),
  );
}

const elapsed = (seconds) => (seconds < 60 ? `${number(seconds)} s` : duration(seconds));

function rewardCard(prepared, shared) {
  const series = () =>
    prepared.value
      .flatMap(({ name, prefix }, index) => [
        {
          key: `${prefix}reward`,
          label: prepared.value.length > 1 ? name : "train mean ± std",
          color: SERIES[index === 0 ? 0 : (index + 1) % SERIES.length],
          band: index ? undefined : "reward_std_dev",
        },
        {
          key: `${prefix}validation`,
          label: prepared.value.length > 1 ? `${name}, validation` : "validation",
          color: index ? SERIES[(index + 1) % SERIES.length] : SERIES[1],
          dots: true,
          dashed: index > 0,
        },
      ])
      .filter(({ key }) =>
        prepared.value.some(({ prefix, rows }) =>
          rows.some((row) => Number.isFinite(row[key.slice(prefix.length)]) && key.startsWith(prefix)),
        ),
      );
  return card(
    "Reward",
    () => legend(series().map(({ color, label }) => [color, h("bdi", { title: label }, cut(label, 40))])),
    lineChart({ ...shared, series, height: 300, label: "Reward by step" }),
  );
}

function metricCard(name, prepared, shared, height, place) {
  const several = () => prepared.value.length > 1;
  const series = () =>
    prepared.value.map(({ name: run, prefix }, index) => ({
      key: prefix + name,
      label: several() ? run : metricName(name),
      color: several() ? SERIES[index === 0 ? 0 : (index + 1) % SERIES.length] : SERIES[place % SERIES.length],
    }));
  const newest = () => prepared.value[0].rows.findLast((row) => Number.isFinite(row[name]))?.[name];
  return card(
    h("span", { title: name }, metricName(name)),
    h("b.newest", () => number(newest())),
    lineChart({
      ...shared,
      series,
      height,
      label: `${metricName(name)} by step`,
      formatY: (value) => (Number.isInteger(value) && Math.abs(value) < 10_000 ? int(value) : number(value)),
    }),
  );
}

/** A select that adds another run of the project to the charts, and chips of those that are there. */
export function comparePicker(models, chosen, own) {
  const ids = () => (query("with") ?? "").split(",").filter(Boolean);
  const others = () => models().filter(({ id }) => id !== own() && !ids().includes(id));
  const put = (list) => setQuery({ with: list.join(",") || null });
  return [
    () =>
      chosen().map(({ id, name }) =>
        h(
          "span.chip",
          h("bdi", name),
          h(
            "button",
            { type: "button", "aria-label": `Remove ${name}`, onclick: () => put(ids().filter((other) => other !== id)) },
            "×",
          ),
        ),
      ),
    () =>
      others().length && ids().length < 4
        ? field(
            "Compare with",
            h(
              "select",
              { onchange: (event) => put([...ids(), event.target.value]) },
              h("option", { value: "" }, "another model"),
              others().map(({ id, name }) => h("option", { value: id }, name)),
            ),
          )
        : null,
  ];
}
