// How sure the model was of each token: the text with the unlikely ones marked, and what else it might have said.
import { h, signal } from "./dom.js";
import { percent, plural } from "./format.js";

const LIMIT = 3000;

/**
 * The tokens of an answer, marked the stronger the less likely they were; arrow keys go from one to the next.
 * @param {any[]} logprobs items {token, logprob, top_logprobs, bytes}
 */
export function tokenHeat(logprobs) {
  const current = signal(-1);
  const shown = signal(LIMIT);
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    current.value = Math.max(0, Math.min(logprobs.length - 1, current.value + step));
  };
  const token = (item, index) =>
    h(
      "span.token",
      {
        style: { "--doubt": String(Math.round((1 - Math.exp(item.logprob)) * 45)) },
        "data-index": index,
        class: () => (current.value === index ? "current" : ""),
      },
      written(item),
    );
  const pick = (event) => {
    const index = event.target.closest?.("[data-index]")?.dataset.index;
    if (index !== undefined) current.value = Number(index);
  };
  return h(
    "div.heat",
    h(
      "div.tokens",
      {
        tabindex: 0,
        role: "group",
        "aria-label": "Tokens, coloured by probability",
        dir: "auto",
        onkeydown: move,
        onpointerover: pick,
        onclick: pick,
      },
      () => logprobs.slice(0, shown.value).map(token),
    ),
    () =>
      shown.value < logprobs.length &&
      h(
        "button.more",
        {
          type: "button",
          onclick: () => {
            shown.value += LIMIT;
          },
        },
        `show more of ${plural(logprobs.length, "token")}`,
      ),
    h("div.alternatives", { "aria-live": "polite" }, () =>
      current.value < 0 ? summary(logprobs) : alternatives(logprobs[current.value]),
    ),
  );
}

function summary(logprobs) {
  const sum = logprobs.reduce((all, item) => all + item.logprob, 0);
  const least = logprobs.reduce((one, other) => (other.logprob < one.logprob ? other : one));
  const perplexity = Math.exp(-sum / logprobs.length).toFixed(2);
  const leastLikely = `${visible(written(least))} (${percent(Math.exp(least.logprob))})`;
  return h(
    "p.dim",
    `${plural(logprobs.length, "token")}, perplexity ${perplexity}, least likely ${leastLikely}. `,
    "Hover over a token, or use the arrow keys.",
  );
}

function alternatives(item) {
  const listed = item.top_logprobs ?? [];
  const others = listed.some((other) => other.token === item.token) ? listed : [item, ...listed];
  const row = (other) => {
    const share = Math.exp(other.logprob);
    const isChosen = other.token === item.token;
    return h(
      "tr",
      { class: isChosen ? "chosen" : "" },
      h("td", h("code", visible(written(other))), isChosen ? h("span.hidden-text", "chosen") : null),
      h("td.share", h("i", { style: { width: `${Math.max(1, share * 100)}%` } })),
      h("td.number", percent(share, 2)),
      h("td.number.dim", other.logprob.toFixed(3)),
    );
  };
  return h(
    "table",
    h(
      "thead.hidden-text",
      h(
        "tr",
        ["Token", "Share", "Probability", "Log-probability"].map((text) => h("th", { scope: "col" }, text)),
      ),
    ),
    h("tbody", others.slice(0, 20).map(row)),
  );
}

/** A token's text; where only its bytes are known, those. */
function written(item) {
  if (!Array.isArray(item.bytes) || !item.token.startsWith("token_id:")) return item.token;
  return new TextDecoder().decode(new Uint8Array(item.bytes));
}

/** Blanks and line ends as signs, so that they can be seen. */
const visible = (text) => text.replace(/ /g, "·").replace(/\n/g, "↵").replace(/\t/g, "⇥") || "∅";
