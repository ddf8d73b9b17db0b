// Feedback of scorers and people on a call, and a form to add more.
import { h } from "../lib/dom.js";
import { postProject } from "../lib/data.js";
import { attempt, menu, toast } from "../lib/dialog.js";
import { ago, number, parseRef } from "../lib/format.js";
import { inParts, valueView } from "../lib/value.js";
import { refLink } from "../lib/panels.js";
import { button, limits } from "../lib/parts.js";
import { link, path, projectId } from "../lib/router.js";

const EMOJI = [
  ["🎉", "Party"],
  ["❤️", "Love"],
  ["🤔", "Unsure"],
  ["😕", "Confused"],
  ["👀", "Look at this"],
  ["✅", "Correct"],
  ["❌", "Wrong"],
];
const REACTION = "wandb.reaction.1";
const NOTE = "wandb.note.1";
const MOST_SHOWN = 100;

/** Scores first, then what people said; with `canWrite` also reactions and notes. */
export function callFeedback(call, canWrite, told) {
  const all = [...(call.summary?.weave?.feedback ?? [])].sort((one, other) =>
    String(other.created_at).localeCompare(String(one.created_at)),
  );
  const scores = all.filter(isScore);
  const said = all.filter((entry) => !isScore(entry));
  return [
    canWrite ? say(call, told) : null,
    h(
      "section",
      h("h3", "Scores"),
      scores.length
        ? inParts(h("ul.feedback"), scores, MOST_SHOWN, "scores", (entry) => score(entry, canWrite, told))
        : h(
            "p.dim",
            "No scores yet. ",
            h("a", { href: link("/scorers"), class: "ref" }, "Run a scorer"),
            " on calls, or add a monitor.",
          ),
    ),
    h(
      "section",
      h("h3", "Feedback"),
      said.length
        ? inParts(h("ul.feedback"), said, MOST_SHOWN, "entries", (entry) => remark(entry, canWrite, told))
        : h("p.dim", "No feedback yet."),
    ),
  ];
}

const isScore = (entry) => /^wandb\.(runnable|annotation)\./.test(entry.feedback_type) || Boolean(entry.runnable_ref);

function say(call, told) {
  const write = async (type, payload) => {
    const body = { weave_ref: `weave:///${projectId()}/call/${call.id}`, feedback_type: type, payload };
    if (await attempt(() => postProject("/feedback/create", body))) told("feedback");
  };
  const note = h("input", { type: "text", "aria-label": "Note", placeholder: "Write a note", maxlength: 1024, dir: "auto" });
  const send = (event) => {
    event.preventDefault();
    return note.value.trim() ? write(NOTE, { note: note.value.trim() }) : toast("The note is empty");
  };
  return h(
    "div.saybox",
    h(
      "div.reactions",
      { role: "group", "aria-label": "Reactions" },
      [
        ["👍", "thumbUp", "Good"],
        ["👎", "thumbDown", "Bad"],
      ].map(([emoji, iconName, label]) => button(null, () => write(REACTION, { emoji }), { iconName, label, needs: "annotate" })),
      menu(
        null,
        EMOJI.map(([emoji, text]) => [`${emoji} ${text}`, () => write(REACTION, { emoji })]),
        { iconName: "smile", label: "Other reactions", needs: "annotate" },
      ),
    ),
    h("form.noteform", { onsubmit: send }, note, h("button.button", { type: "submit", ...limits("annotate") }, "Add note")),
  );
}

function score(entry, canWrite, told) {
  const by = parseRef(entry.runnable_ref ?? entry.annotation_ref ?? "");
  const name = by?.name ?? entry.feedback_type.replace(/^wandb\.(runnable|annotation)\./, "");
  const value = entry.payload?.output ?? entry.payload?.value ?? entry.payload;
  const ran = parseRef(entry.call_ref ?? "");
  return item(entry, canWrite, told, [
    h(
      "div.feedbackhead",
      by ? refLink(entry.runnable_ref ?? entry.annotation_ref, name) : h("b", name),
      scoreChips(value),
      ran ? h("a.ref", { href: link(path`/calls/${ran.name}`) }, "scorer’s call") : null,
    ),
    isTold(value) ? null : valueView(value),
  ]);
}

/** Whether the chips say all of a value. */
const isTold = (value) => isPlain(value) || scoreChips(value).length === Object.keys(value).length;

const isPlain = (value) => value === null || typeof value !== "object";

function scoreChips(value) {
  const shown = isPlain(value)
    ? [["", value]]
    : Object.entries(value)
        .filter(([, part]) => typeof part === "number" || typeof part === "boolean")
        .slice(0, 4);
  return shown.map(([name, part]) =>
    h(
      "span.badge",
      { class: part === true ? "good" : part === false ? "error" : "" },
      name ? `${name} ` : "",
      typeof part === "number" ? number(part) : String(part),
    ),
  );
}

function remark(entry, canWrite, told) {
  const { payload, feedback_type: type } = entry;
  const shown =
    type === REACTION
      ? h("p", h("span.emoji", payload?.emoji ?? ""), h("span.dim", ` ${words(payload?.alias)}`))
      : type === NOTE
        ? h("p.note", { dir: "auto" }, payload?.note ?? "")
        : [h("b", type), valueView(payload)];
  return item(entry, canWrite, told, shown);
}

/** ":thumbs_up:" as "thumbs up". */
const words = (alias) =>
  String(alias ?? "")
    .replace(/^:|:$/g, "")
    .replaceAll("_", " ");

function item(entry, canWrite, told, content) {
  const remove = async () => {
    const query = { $expr: { $eq: [{ $getField: "id" }, { $literal: entry.id }] } };
    if (await attempt(() => postProject("/feedback/purge", { query }), "Removed")) told("feedback");
  };
  return h(
    "li",
    h("div.feedbackbody", content),
    h("small.dim", { title: entry.created_at }, `${entry.creator ?? entry.wb_user_id ?? ""} ${ago(entry.created_at)}`),
    canWrite && entry.id ? button(null, remove, { kind: "quiet", iconName: "trash", label: "Remove", needs: "admin" }) : null,
  );
}
