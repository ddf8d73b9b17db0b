// Groups of trajectories: what was asked, how the rewards spread, and each member with its advantage.
import { h, signal } from "../lib/dom.js";
import { int, number, oneLine, plural } from "../lib/format.js";
import { button } from "../lib/parts.js";
import { here, setQuery } from "../lib/router.js";

const AT_ONCE = 40;
const MEMBERS = 64;

/** The groups in the order that was chosen: by spread, by their best or worst mean, or as they were sent. */
export function inOrder(groups, order) {
  const value = {
    spread: (group) => -(group.spread ?? -1),
    best: (group) => -(group.mean ?? -Infinity),
    worst: (group) => group.mean ?? Infinity,
  }[order];
  return value ? [...groups].sort((a, b) => value(a) - value(b) || a.group - b.group) : groups;
}

/** The list of groups; `at` is "group.index" of the trajectory that is open. */
export function groupList(ordered, at) {
  const shown = signal(AT_ONCE);
  return [
    h("ol.groups", { "aria-label": "Groups of trajectories" }, () =>
      ordered.value.slice(0, shown.value).map((group) => groupCard(group, at)),
    ),
    () =>
      shown.value < ordered.value.length
        ? button(
            `Show ${int(Math.min(AT_ONCE, ordered.value.length - shown.value))} more of ${int(ordered.value.length)}`,
            () => {
              shown.value += AT_ONCE;
            },
          )
        : null,
  ];
}

function groupCard(group, at) {
  return h(
    "li.group",
    h(
      "header",
      h("span.one-line", { dir: "auto", title: group.prompt }, group.prompt || h("span.faint", "no user message")),
      h("span.spread", group.mean === null ? "empty" : `${number(group.mean)} ± ${number(group.spread)}`),
      group.spread === 0 ? h("span.badge", { title: "Equal rewards teach nothing" }, "equal") : null,
      group.exceptions.length
        ? h("span.badge.error", { title: group.exceptions.join("\n") }, `${group.exceptions.length} failed`)
        : null,
    ),
    h(
      "ul",
      group.trajectories.slice(0, MEMBERS).map((member, index) => memberRow(group, member, index, at)),
    ),
    group.trajectories.length > MEMBERS ? h("p.dim", `and ${int(group.trajectories.length - MEMBERS)} more`) : null,
  );
}

function memberRow(group, member, index, at) {
  const name = `${group.group}.${index}`;
  const rewards = group.trajectories.map(({ reward }) => reward);
  const rank =
    group.spread > 0 && member.reward === Math.max(...rewards)
      ? "best"
      : group.spread > 0 && member.reward === Math.min(...rewards)
        ? "worst"
        : "";
  const href = () => {
    const url = new URL(here.value);
    url.searchParams.set("at", name);
    return url.pathname + url.search;
  };
  return h(
    "li",
    h(
      "a.member",
      {
        href,
        "aria-current": () => (at.value === name ? "true" : null),
        onclick: (event) => {
          if (event.metaKey || event.ctrlKey || event.shiftKey) return;
          event.preventDefault();
          setQuery({ at: name });
        },
      },
      h("span.reward", { title: "Reward" }, number(member.reward)),
      advantageChip(member.advantage),
      h("span.one-line.said", { dir: "auto", title: member.preview }, oneLine(member.preview) || h("span.faint", "no answer")),
      member.turns > 1 ? h("span.badge", plural(member.turns, "turn")) : null,
      rank ? h("span.badge", { class: rank === "best" ? "good" : "" }, rank) : null,
    ),
  );
}

/** An advantage with its sign, in the colour of what it does: more of this, less of this, or nothing. */
export function advantageChip(advantage) {
  const kind = advantage > 0 ? "up" : advantage < 0 ? "down" : "none";
  const text = advantage === 0 ? "0" : `${advantage > 0 ? "+" : "−"}${Math.abs(advantage).toFixed(2)}`;
  return h(
    "span.advantage",
    { "data-sign": kind, title: "Advantage: (reward − group mean) / standard deviation" },
    text,
  );
}
