// How often a scorer and people say the same of a call.
import { postProject } from "./data.js";
import { leaves } from "./scores.js";

const MOST_HUMAN = 2000;
const GOOD = ["👍", "❤️", "❤", "🎉", "💯", "✅", "🔥"];
const BAD = ["👎", "😞", "❌", "😡"];
const RUNNABLE = "wandb.runnable.";

const field = (name) => ({ $getField: name });
const literal = (value) => ({ $literal: value });
const contains = (text) => ({ $contains: { input: field("feedback_type"), substr: literal(text) } });

/** How often each scorer (by name) scored anything: its count of feedback rows. */
export async function useCount(name, abort) {
  const answer = await postProject(
    "/feedback/query",
    { fields: ["id"], limit: 1, query: { $expr: { $eq: [field("feedback_type"), literal(RUNNABLE + name)] } } },
    abort,
  );
  return answer.total_count;
}

/** By scorer name: {agreed, compared} over the calls that people and the scorer judged. */
export async function agreements(abort) {
  const human = await postProject(
    "/feedback/query",
    {
      fields: ["weave_ref", "feedback_type", "payload"],
      limit: MOST_HUMAN,
      sort_by: [{ field: "created_at", direction: "desc" }],
      query: { $expr: { $or: [contains("wandb.reaction."), contains("wandb.annotation.")] } },
    },
    abort,
  );
  const verdicts = new Map();
  for (const row of human.result) {
    const verdict = personsVerdict(row);
    if (verdict !== null && !verdicts.has(row.weave_ref)) verdicts.set(row.weave_ref, verdict);
  }
  const found = new Map();
  if (!verdicts.size) return found;
  const scored = await postProject(
    "/feedback/query",
    {
      fields: ["weave_ref", "feedback_type", "payload"],
      limit: 10_000,
      query: { $expr: { $and: [contains(RUNNABLE), { $in: [field("weave_ref"), [...verdicts.keys()].map(literal)] }] } },
    },
    abort,
  );
  for (const row of scored.result) {
    const verdict = scorersVerdict(row.payload?.output);
    if (verdict === null) continue;
    const name = row.feedback_type.slice(RUNNABLE.length);
    const count = found.get(name) ?? { agreed: 0, compared: 0 };
    found.set(name, { agreed: count.agreed + Number(verdict === verdicts.get(row.weave_ref)), compared: count.compared + 1 });
  }
  return found;
}

/** True for praise, false for blame, null if it is neither. */
function personsVerdict({ feedback_type: type, payload }) {
  if (type.startsWith("wandb.reaction.")) {
    const emoji = payload?.emoji ?? "";
    return GOOD.some((sign) => emoji.startsWith(sign)) ? true : BAD.some((sign) => emoji.startsWith(sign)) ? false : null;
  }
  const value = payload?.value;
  if (typeof value === "boolean") return value;
  if (typeof value === "number" && value >= 0 && value <= 1) return value >= 0.5;
  return typeof value === "string"
    ? ({ good: true, yes: true, correct: true, pass: true, bad: false, no: false, incorrect: false, wrong: false, fail: false }[
        value.toLowerCase()
      ] ?? null)
    : null;
}

/** What a score says: its first truth, else whether its first number from 0 to 1 is at least one half. */
function scorersVerdict(output) {
  const values = leaves(output ?? {}).map(([, value]) => value);
  const truth = values.find((value) => typeof value === "boolean");
  if (truth !== undefined) return truth;
  const number = values.find((value) => typeof value === "number" && value >= 0 && value <= 1);
  return number === undefined ? null : number >= 0.5;
}
