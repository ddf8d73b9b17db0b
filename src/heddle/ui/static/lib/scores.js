// Scores as small figures: a mean with its bar, a difference with what it means, chips of one row's scores.
import { h } from "./dom.js";
import { shareBar } from "./chart.js";
import { oneLine } from "./format.js";
import { measureLabel, written, writtenChange } from "./runs.js";
import { isScore, lessIsBetter, VERDICTS } from "./statistics.js";

/** A measure's mean, with a bar where it lies between 0 and 1 (or against the `most` of its column). */
export function scoreBar(name, value, { most = 1, color = undefined } = {}) {
  if (value == null) return h("span.faint", "–");
  const share = isScore(name) && !lessIsBetter(name) && most <= 1 ? value : value / (most || 1);
  return shareBar(share, written(name, value), color ?? (isScore(name) ? undefined : "var(--series-5)"));
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
            .map(([name, value]) => `${name}: ${oneLine(value, 60)}`)
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
      : oneLine(value, 24);
  const short = name.slice(name.lastIndexOf(".") + 1);
  return h(
    "span.scorechip",
    { class: kind, title: `${name}: ${oneLine(value, 300)}` },
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
  const shown = isScore(name) && name !== "score" ? text : text[0].toUpperCase() + text.slice(1);
  const cut = text.lastIndexOf(".");
  return h(
    "span.measure",
    { title: `${text}${lessIsBetter(name) ? ", less is better" : ""}` },
    cut > 0 && h("small", text.slice(0, cut)),
    h("span", shown.slice(cut + 1), lessIsBetter(name) && h("span.faint", { "aria-hidden": "true" }, " ↓")),
  );
}
