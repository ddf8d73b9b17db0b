// Where the time of a run went: the client's rollouts, waiting, preparing, training and publishing, job after job.
import { h } from "../lib/dom.js";
import { legend, widthOf } from "../lib/chart.js";
import { duration } from "../lib/format.js";
import { card } from "../lib/panels.js";
import { phasesOf } from "./job_data.js";

const COLORS = {
  rollout: "var(--line-strong)",
  waiting: "var(--series-6)",
  preparing: "var(--series-5)",
  training: "var(--series-1)",
  publishing: "var(--series-2)",
};
const NAMES = {
  rollout: "rollouts (the client's)",
  waiting: "waiting",
  preparing: "preparing",
  training: "training",
  publishing: "publishing",
};
const MOST_JOBS = 60;
const HEIGHT = 44;

/** The phases of the newest jobs as one strip; long pauses of the client are cut short. */
export function phaseTimeline(jobs) {
  const segments = () => phasesOf(jobs().slice(-MOST_JOBS));
  const sums = () =>
    Object.keys(COLORS).map((phase) => [
      phase,
      segments()
        .filter(([name]) => name === phase)
        .reduce((sum, [, from, to]) => sum + to - from, 0),
    ]);
  const svg = h("svg.chart.phases", { role: "img", "aria-label": "Phases of the newest jobs", height: HEIGHT, width: "100%" });
  const box = h("div.chartbox", svg);
  const width = widthOf(box);
  return card(
    "Phases",
    () =>
      legend(
        sums()
          .filter(([, seconds]) => seconds > 0)
          .map(([phase, seconds]) => [COLORS[phase], `${NAMES[phase]} ${duration(seconds)}`]),
      ),
    box,
    () => {
      svg.replaceChildren(...draw(segments(), width.value));
      return null;
    },
  );
}

function draw(segments, width) {
  const worked = segments.filter(([phase]) => phase !== "rollout").map(([, from, to]) => to - from);
  const longest = Math.max(0.05, ...worked) * 4;
  const shown = segments.map(([phase, from, to, job]) => ({
    phase,
    seconds: to - from,
    size: Math.min(to - from, longest),
    job,
  }));
  const total = shown.reduce((sum, { size }) => sum + size, 0) || 1;
  let left = 0;
  let marked = -99;
  let step = null;
  return shown.flatMap(({ phase, seconds, size, job }) => {
    const wide = (size / total) * width;
    const at = left;
    left += wide;
    const bar = h(
      "rect",
      { x: at, y: 0, width: Math.max(0.5, wide - (wide > 3 ? 0.5 : 0)), height: 24, rx: wide > 6 ? 2 : 0, fill: COLORS[phase] },
      h("title", `Step ${job.step ?? "?"}: ${NAMES[phase]} ${duration(seconds)}${size < seconds ? " (cut short here)" : ""}`),
    );
    const begins = phase !== "rollout" && job.step !== step && at - marked > 34;
    if (!begins) return [bar];
    step = job.step;
    marked = at;
    return [bar, h("text", { class: "axis", x: at, y: 40 }, job.step ?? "")];
  });
}
