// One trajectory: as a conversation, as the tokens that were trained, and as it was sent.
import { h, signal } from "../lib/dom.js";
import { conversationView } from "../lib/chat.js";
import { get, resource } from "../lib/data.js";
import { date, int, number, plural } from "../lib/format.js";
import { json } from "../lib/json.js";
import { valueLine } from "../lib/line.js";
import { empty, facts, tabs } from "../lib/panels.js";
import { backToList, button, icon, loaded } from "../lib/parts.js";
import { link, path, setQuery } from "../lib/router.js";
import { advantageChip } from "./trajectories_groups.js";

const TOKENS_AT_ONCE = 3000;

/** The open trajectory next to the list of groups. */
export function trajectoryView(asked, at, groups) {
  const state = resource(() => {
    const [place, index] = (at.value ?? "").split(".");
    return index === undefined || !asked.value
      ? null
      : `/_ui/api/trajectories/one?${asked.value}&${new URLSearchParams({ place, index })}`;
  }, get);
  return h(
    "div.scroll.onetrajectory",
    { tabindex: 0, role: "region", "aria-label": "Trajectory" },
    backToList("All trajectories", () => setQuery({ at: null }, false)),
    () => (at.value ? null : empty({ title: "No trajectory", text: "All groups of this step are empty." })),
    loaded(state, (data) => show(data, at.peek(), groups)),
  );
}

function show(data, at, groups) {
  const [place, index] = at.split(".").map(Number);
  const { trajectory } = data;
  const group = groups.find((one) => one.group === place);
  return [
    h(
      "header.onehead",
      h("h2", `Group ${place + 1}, trajectory ${index + 1}`),
      h("b.reward", { title: "Reward" }, `Reward ${number(trajectory.reward ?? 0)}`),
      advantageChip(data.advantage),
      h("span.grow"),
      traceLink(trajectory.metadata),
    ),
    facts([
      ...Object.entries(trajectory.metrics ?? {}).map(([name, value]) => [name, number(value)]),
      ...Object.entries(trajectory.metadata ?? {})
        .filter(([name]) => !/^(trace|call)_id$/.test(name))
        .map(([name, value]) => [name, valueLine(value, { length: 80 })]),
      ["Sampled by step", trajectory.initial_policy_version === undefined ? null : versions(trajectory)],
      ["Group mean", group?.mean === null ? null : number(group?.mean)],
      ["Started", trajectory.start_time ? date(trajectory.start_time)?.toLocaleString() : null],
    ]),
    data.advantage === 0 ? h("p.dim", "It has the mean reward of its group, so nothing was learned from it.") : null,
    tabs(
      "Trajectory",
      [
        ["chat", "Chat", () => chat(data.conversations)],
        ["tokens", "Tokens", () => tokens(data)],
        ...(trajectory.logs?.length
          ? [["logs", "Logs", () => h("pre.logs", { tabindex: 0 }, trajectory.logs.join("\n"))]]
          : []),
        ["raw", "Raw", () => json(trajectory, 1)],
      ],
      "view",
    ),
  ];
}

function versions({ initial_policy_version: first, final_policy_version: last }) {
  return last === undefined || last === first ? String(first) : `${first} to ${last}`;
}

function traceLink(metadata) {
  const call = metadata?.call_id;
  if (!call) return null;
  const href = metadata.trace_id ? link(path`/traces/${metadata.trace_id}`, { call }) : link(path`/calls/${call}`);
  return h("a.button", { href }, icon("calls"), "Its trace");
}

function chat(conversations) {
  return conversations.map((found, index) =>
    h(
      "section.history",
      index ? h("h3", `Conversation ${index + 1}`) : null,
      found.messages.length ? conversationView(found) : h("p.dim", "It has no messages."),
    ),
  );
}

function tokens({ sequences, problem, advantage }) {
  if (problem) return h("p.worse", problem);
  if (!sequences.length)
    return h(
      "p.dim",
      advantage === 0
        ? "With an advantage of 0 no token is trained."
        : "Nothing in it could be trained: its answers have no log-probabilities.",
    );
  return h(
    "div.tokenviews",
    h(
      "p.legend",
      h(
        "span",
        h("i.tokenkey", { "data-sign": advantage > 0 ? "up" : "down" }),
        advantage > 0 ? "trained, made likelier" : "trained, made less likely",
      ),
      h("span", h("i.tokenkey"), "context only"),
    ),
    sequences.map(sequenceView),
  );
}

function sequenceView(sequence, index) {
  const shown = signal(Math.min(TOKENS_AT_ONCE, sequence.tokens.length));
  const sign = sequence.advantage > 0 ? "up" : "down";
  return h(
    "section.sequence",
    h(
      "h3",
      `Sequence ${index + 1}: ${int(sequence.trained)} of ${plural(sequence.length, "token")} trained`,
      sequence.shared ? `, ${int(sequence.shared)} shared with its group` : null,
    ),
    h("div.tokenflow", { dir: "auto", tabindex: 0, role: "group", "aria-label": `Tokens of sequence ${index + 1}` }, () =>
      runs(sequence, shown.value).map(([isTrained, from, to]) =>
        isTrained
          ? h(
              "mark.trained",
              { "data-sign": sign },
              sequence.tokens.slice(from, to).map((text, offset) => token(text, sequence.logprobs[from + offset])),
            )
          : h("span.context", sequence.tokens.slice(from, to).join("")),
      ),
    ),
    () =>
      shown.value < sequence.tokens.length
        ? button(`Show more of ${plural(sequence.tokens.length, "token")}`, () => {
            shown.value += TOKENS_AT_ONCE;
          })
        : null,
    sequence.tokens.length < sequence.length ? h("p.dim", `The first ${plural(sequence.tokens.length, "token")}.`) : null,
  );
}

const token = (text, logprob) =>
  h(
    "span.token",
    {
      title:
        logprob === null ? "" : `log-probability when sampled ${number(logprob)} (${(Math.exp(logprob) * 100).toFixed(1)} %)`,
    },
    text,
  );

/** Stretches of tokens that are trained or not: [[isTrained, from, to], …]. */
function runs({ mask }, end) {
  const found = [];
  for (let index = 0; index < end; index++) {
    const isTrained = mask[index] === 1;
    if (found.at(-1)?.[0] === isTrained) found.at(-1)[2] = index + 1;
    else found.push([isTrained, index, index + 1]);
  }
  return found;
}
