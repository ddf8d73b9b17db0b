// What refs point to, and messages in values: the server is asked for all that a page shows at once, and once.
import { signal } from "./dom.js";
import { postProject } from "./data.js";
import { projectId } from "./router.js";

const MOST_REFS = 200;
const MOST_VALUES = 40;
const MOST_KEPT = 4000;
const LARGEST_VALUE = 1_500_000;

/** Whether a value is a ref as SDKs write it. */
export const isRef = (value) =>
  typeof value === "string" && value.length < 2000 && /^weave(-private)?:\/\/\/\S+$/.test(value);

let targets = new Map();
let said = new Map();
let waiting = { refs: [], values: [] };
let timer = 0;

/**
 * What a ref points to, as a signal: null while that is asked for, then {value}, {call}, {table}, {is_large}, or {gone}.
 * @param {string} ref
 */
export function targetOf(ref) {
  return held(targets, ref, "refs", ref);
}

/**
 * The conversation that a value is, as a signal: null while that is asked for, false where it is none.
 * @param {any} value
 */
export function conversationOf(value) {
  const text = JSON.stringify(value);
  return text.length > LARGEST_VALUE ? signal(false) : held(said, text, "values", value);
}

function held(known, key, kind, asked) {
  const name = `${projectId()} ${key}`;
  if (!known.has(name)) {
    if (known.size > MOST_KEPT) known.clear();
    const found = signal(/** @type {any} */ (null));
    known.set(name, found);
    waiting[kind].push([asked, found]);
    timer ||= setTimeout(send, 8);
  }
  return known.get(name);
}

async function send() {
  timer = 0;
  const refs = waiting.refs.splice(0, MOST_REFS);
  const values = waiting.values.splice(0, MOST_VALUES);
  if (waiting.refs.length || waiting.values.length) timer = setTimeout(send, 0);
  const tell = (asked, answers, none) => asked.forEach(([, found], index) => {
    found.value = answers?.[index] ?? none;
  });
  try {
    const answer = await postProject("/_ui/api/values", { refs: refs.map(([ref]) => ref), values: values.map(([value]) => value) });
    tell(refs, answer.refs, { gone: true });
    tell(values, answer.values, false);
  } catch (error) {
    tell(refs, null, { gone: true, reason: error.message });
    tell(values, null, false);
  }
}
