// Scores in small form: a mean with its bar, a difference and its meaning, chips with the scores of one row.
import { h } from "./dom.js";
import { shareBar } from "./chart.js";
import { lineText } from "./line.js";
import { measureLabel, shareOf, written, writtenChange, writtenScale } from "./runs.js";
import { isScore, lessIsBetter, VERDICTS } from "./statistics.js";

/**
 * A measure's figure, with a bar on the measure's own range.
 * @param {string} name
 * @param {number|null|undefined} value
 * @param {{scale?: [number, number], color?: string}} [options]
 */
export function scoreBar(name, value, { scale = [0, 1], color = undefined } = {}) {
  if (value == null) return h("span.faint", "–");
  return h("span", { title: `${measureLabel(name)}, on a scale of ${writtenScale(name, scale)}` },
    shareBar(shareOf(value, scale), written(name, value), color ?? (isScore(name) ? undefined : "var(--series-5)")));
}

/** A difference in the colour of what it means; `sure` is a verdict, or nothing where no interval is known. */
export function change(name, value, sure = "") {
  if (value == null) return h("span.faint", "–");
  const same = Number(value.toPrecision(9)) === 0;
  const kind = same ? "same" : value > 0 === lessIsBetter(name) ? "worse" : "better";
  const clear = sure === "" || sure === kind;
  return h(
    "span",
    { class: same || !clear ? "dim" : kind, title: sure ? VERDICTS[sure] : null },
    writtenChange(name, value),
    sure && sure === kind ? h("span.hidden-text", `, surely ${kind}`) : null,
  );
}

/** The scores of one trial as chips: truths by a mark, numbers as they are, texts cut. */
export function scoreChips(scores, most = 4) {
  const found = leaves(scores ?? {});
  return h(
    "span.scorechips",
    found.slice(0, most).map(([name, value]) => scoreChip(name, value)),
    found.length > most &&
      h(
        "span.scorechip",
        {
          title: found
            .slice(most)
            .map(([name, value]) => `${name}: ${lineText(value, 60)}`)
            .join("\n"),
        },
        `+${found.length - most}`,
      ),
  );
}

function scoreChip(name, value) {
  const kind = value === true ? "pass" : value === false ? "fail" : "";
  const text =
    typeof value === "boolean" ? (value ? "✓" : "✗") : typeof value === "number" ? Number(value.toPrecision(3))
      : lineText(value, 24);
  const short = name.slice(name.lastIndexOf(".") + 1);
  return h(
    "span.scorechip",
    { class: kind, title: `${name}: ${lineText(value, 300)}` },
    h("b", text),
    " ",
    h("span", short),
    kind && h("span.hidden-text", kind === "pass" ? " passed" : " failed"),
  );
}

/** Every value inside scores with its dotted name; lists and nothing are left out. */
export function leaves(value, name = "") {
  if (value === null || value === undefined || Array.isArray(value)) return [];
  if (typeof value !== "object") return [[name, value]];
  return Object.entries(value).flatMap(([key, item]) => leaves(item, name ? `${name}.${key}` : key));
}

/** A measure's name for a heading, with the whole of it and what is good as its title. */
export function measureHeading(name) {
  const text = measureLabel(name);
  const shown = isScore(name) ? text : text[0].toUpperCase() + text.slice(1);
  const cut = text.lastIndexOf(".");
  return h(
    "span.measure",
    { title: `${text}${lessIsBetter(name) ? ", lower is better" : ""}` },
    cut > 0 && h("small", text.slice(0, cut)),
    h("span", shown.slice(cut + 1), lessIsBetter(name) && h("span.faint", { "aria-hidden": "true" }, " ↓")),
  );
}
