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

/** Answers that say that the same question may be answered later. */
const PASSING = [0, 401, 429, 503];

const targets = new Map();
const said = new Map();
let ofProject = "";
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
  if (ofProject !== projectId()) {
    ofProject = projectId();
    waiting = { refs: [], values: [] };
    targets.clear();
    said.clear();
  }
  if (!known.has(key)) {
    if (known.size > MOST_KEPT) known.clear();
    const found = signal(/** @type {any} */ (null));
    known.set(key, found);
    waiting[kind].push([asked, found]);
  }
  sendSoon();
  return known.get(key);
}

function sendSoon() {
  if (waiting.refs.length || waiting.values.length) timer ||= setTimeout(send, 8);
}
addEventListener("heddle:retry", sendSoon);

async function send() {
  timer = 0;
  const refs = waiting.refs.splice(0, MOST_REFS);
  const values = waiting.values.splice(0, MOST_VALUES);
  sendSoon();
  const project = ofProject;
  const tell = (asked, answers, none) => asked.forEach(([, found], index) => {
    found.value = answers[index] ?? none;
  });
  try {
    const answer = await postProject("/_ui/api/values", { refs: refs.map(([ref]) => ref), values: values.map(([value]) => value) });
    tell(refs, answer.refs, { gone: true });
    tell(values, answer.values, false);
  } catch (error) {
    // They are shown as they are, and asked for with what is drawn next, or once the server is back.
    tell(values, [], false);
    if (!PASSING.includes(error.status) || project !== ofProject) return;
    waiting.refs.push(...refs);
    waiting.values.push(...values);
  }
}
