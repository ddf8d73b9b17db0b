// The scorers that the server runs itself: what each measures and which settings it takes, and how new ones are made.
import { storeObject } from "./data.js";
import { projectId } from "./router.js";

const TEXTS = [
  ["ignore_case", "Ignore case", "checkbox"],
  ["strip", "Strip spaces", "checkbox", true],
];

/**
 * Built-in scorers by class name: what each says of an answer, and its settings as [name, label, type, default].
 * @type {Record<string, {says: string, needsTarget: boolean, settings: any[][]}>}
 */
export const BUILT_IN = {
  ExactMatchScorer: { says: "the answer equals the target", needsTarget: true, settings: TEXTS },
  ContainsScorer: { says: "the answer contains the target", needsTarget: true, settings: TEXTS },
  RegexMatchScorer: {
    says: "the answer matches a pattern",
    needsTarget: false,
    settings: [
      ["pattern", "Pattern (leave empty to use the target)", "text"],
      ["ignore_case", "Ignore case", "checkbox"],
      ["full_match", "Match the whole answer", "checkbox"],
    ],
  },
  NumberMatchScorer: {
    says: "the last number in the answer is correct",
    needsTarget: true,
    settings: [
      ["tolerance", "Tolerance", "number", 0.000001],
      ["relative_tolerance", "Relative tolerance", "number", 0],
    ],
  },
  ValidJSONScorer: { says: "the answer is valid JSON", needsTarget: false, settings: [] },
  JSONMatchScorer: { says: "the answer equals the target as JSON", needsTarget: true, settings: [] },
  JSONSchemaScorer: {
    says: "the answer matches a JSON schema",
    needsTarget: false,
    settings: [["json_schema", "JSON schema (leave empty to use the target)", "textarea"]],
  },
  StringMatchScorer: { says: "the target contains the answer", needsTarget: true, settings: [] },
  LevenshteinScorer: { says: "edit distance between the answer and the target", needsTarget: true, settings: TEXTS },
  TextOverlapScorer: { says: "words shared by the answer and the target (token F1, ROUGE-L)", needsTarget: true, settings: [] },
};

/** What runs a scorer: "built-in", "LLM judge" or "code". */
export function kindOfScorer(object) {
  const name = object.leaf_object_class ?? object.val?._class_name ?? "";
  if (name === "LLMAsAJudgeScorer") return "LLM judge";
  const score = object.val?.score;
  const isPlain = score == null || (typeof score === "string" && score.includes("/op/Scorer.score:"));
  return BUILT_IN[name] && (isPlain || ["ValidJSONScorer", "StringMatchScorer", "LevenshteinScorer"].includes(name))
    ? "built-in"
    : "code";
}

/** True for scorers that the server can run; the code of programs it never runs. */
export const runsHere = (object) => kindOfScorer(object) !== "code";

/** The value of an object of a class of the SDK. */
const objectOf = (name, className, bases, fields) => ({ _type: className, _class_name: className, _bases: bases, name, ...fields });

/** Store an object of a class of the SDK, after a digest as `storeObject` does; resolves to its ref. */
export async function publish(name, className, bases, fields, after = null) {
  const digest = await storeObject(name, objectOf(name, className, bases, fields), { after });
  return `weave:///${projectId()}/object/${name}:${digest}`;
}

const SCORER = ["Scorer", "Object", "BaseModel"];

/** Store a built-in scorer; resolves to its ref. */
export const publishBuiltIn = (name, className, settings = {}) => publish(name, className, SCORER, settings);

/** The value of a built-in scorer that is not stored. */
export const builtInOf = (name, className, settings) => objectOf(name, className, SCORER, settings);

/** @param {any} told the name of the model and what the system is told */
const modelOf = ({ model, system = "" }) => ({ llm_model_id: model, default_params: { response_format: "json_object",
  temperature: 0, messages_template: system ? [{ role: "system", content: system }] : [] } });
const MODEL = ["Model", "Object", "BaseModel"];

/** The value of a judge that is not stored, its model inside. */
export const judgeOf = ({ name, prompt, ...rest }) => objectOf(name, "LLMAsAJudgeScorer", SCORER,
  { model: objectOf(`${name}-model`, "LLMStructuredCompletionModel", MODEL, modelOf(rest)), scoring_prompt: prompt });

/** Store a judge: a chat model that is asked for JSON by a prompt about the answer. */
export async function publishJudge({ name, prompt, ...rest }) {
  const asked = await publish(`${name}-model`, "LLMStructuredCompletionModel", MODEL, modelOf(rest));
  return publish(name, "LLMAsAJudgeScorer", SCORER, { model: asked, scoring_prompt: prompt });
}

/** A name that can be an object's. */
export const objectName = (text) =>
  text
    .trim()
    .replace(/[^\w.-]+/g, "-")
    .replace(/^-+|-+$/g, "")
    .slice(0, 128);
