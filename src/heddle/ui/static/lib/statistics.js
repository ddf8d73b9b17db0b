// How sure a difference between two runs is: the regression gate's own method and words.
// Rows are paired; the interval holds the mean difference with 95 % confidence by a percentile bootstrap over rows
// (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13).

const RESAMPLES = 10_000;
const FEWEST_RESAMPLES = 1_000;
const MOST_DRAWS = 4_000_000;
const SLICE_MILLISECONDS = 12;
const NOT_SCORES = ["latency", "cost", "tokens", "error_share"];

/** True for measures of which lower is better: latency, cost, tokens, the share of failed answers, distances. */
export function lessIsBetter(name) {
  const leaf = name.slice(name.lastIndexOf(".") + 1);
  return NOT_SCORES.includes(name) || leaf === "distance" || leaf.endsWith("_distance");
}

/** True for what the answers were given, false for what they took. */
export const isScore = (name) => !NOT_SCORES.includes(name);

/** Scores by name, then what is no score. */
export function measuresInOrder(names) {
  const place = (name) => NOT_SCORES.indexOf(name) + 1;
  return [...new Set(names)].sort((one, other) => place(one) - place(other) || one.localeCompare(other));
}

/** The measure that stands for all where no other is chosen: the first score, else the first measure. */
export const firstMeasure = (names) => names.find((name) => isScore(name) && !lessIsBetter(name)) ?? names[0] ?? null;

/** The mean of a list, null for none. */
export const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);

/** The value below which a share of the ordered values is, interpolated linearly. */
export function quantile(ordered, share) {
  const place = share * (ordered.length - 1);
  const below = Math.floor(place);
  const above = Math.min(below + 1, ordered.length - 1);
  return ordered[below] + (ordered[above] - ordered[below]) * (place - below);
}

/** How often rows are drawn again: 10,000 times, and fewer where rows are many. */
export const resamplesFor = (rows) => Math.max(FEWEST_RESAMPLES, Math.min(RESAMPLES, Math.floor(MOST_DRAWS / Math.max(1, rows))));

/**
 * The 95 % interval of the mean of differences, the same for the same differences; works in slices, so that the page
 * stays usable. Resolves to [low, high], or null for no differences or when given up.
 * @param {number[]} differences
 * @param {AbortSignal} [abort]
 * @returns {Promise<[number, number]|null>}
 */
export async function interval(differences, abort) {
  const count = differences.length;
  if (!count) return null;
  if (differences.every((value) => value === differences[0])) return [differences[0], differences[0]];
  const values = Float64Array.from(differences);
  const means = new Float64Array(resamplesFor(count));
  const draw = generator(20_240_607);
  let began = performance.now();
  for (let turn = 0; turn < means.length; turn++) {
    let sum = 0;
    for (let left = count; left > 0; left--) sum += values[(draw() * count) | 0];
    means[turn] = sum / count;
    if (performance.now() - began > SLICE_MILLISECONDS) {
      await new Promise((resolve) => {
        setTimeout(resolve);
      });
      if (abort?.aborted) return null;
      began = performance.now();
    }
  }
  means.sort();
  return [quantile(means, 0.025), quantile(means, 0.975)];
}

/** Numbers from 0 to 1 by xorshift with a fixed seed. */
function generator(seed) {
  let state = seed;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 4_294_967_296;
  };
}

/**
 * Two columns of values by row, compared over the rows that have both.
 * @returns {{baseline: number|null, run: number|null, rows: number, differences: number[]}}
 */
export function paired(baseline, run) {
  const ours = [];
  const theirs = [];
  const length = baseline && run ? Math.min(baseline.length, run.length) : 0;
  for (let row = 0; row < length; row++) {
    if (baseline[row] === null || run[row] === null) continue;
    theirs.push(baseline[row]);
    ours.push(run[row]);
  }
  return {
    baseline: mean(theirs),
    run: mean(ours),
    rows: ours.length,
    differences: ours.map((value, row) => value - theirs[row]),
  };
}

/** "better" or "worse" where the interval leaves 0 out, else "unclear"; "same" where nothing differs. */
export function verdict(name, [low, high]) {
  if (low === 0 && high === 0) return "same";
  if (low <= 0 && high >= 0) return "unclear";
  return low > 0 === lessIsBetter(name) ? "worse" : "better";
}

/** What a verdict means, in a sentence. */
export const VERDICTS = {
  better: "Significantly better: the 95 % interval excludes 0.",
  worse: "Significantly worse: the 95 % interval excludes 0.",
  unclear: "Not significant: the 95 % interval includes 0, so the difference may be chance.",
  same: "No difference in any row.",
};
