// What annotators fill in: annotation specs as fields of a few kinds, and their JSON Schemas.
import { postProject, storeObject } from "../lib/data.js";
import { parseRef } from "../lib/format.js";
import { projectId } from "../lib/router.js";

/** The kinds of fields that can be made here. */
export const KINDS = [["choice", "Choice"], ["choices", "Several choices"], ["rating", "Rating"], ["boolean", "Yes or no"],
  ["text", "Text"], ["number", "Number"]];

/** The kind of a field whose spec is no longer there. */
export const GONE = "gone";

const LATEST = ":latest";
const MOST_REFS = 200;

/**
 * A field: `name` is the object's, which names the feedback; `options` are the values to choose from, where there are any.
 * @typedef {{ref: string, name: string, label: string, description: string, kind: string, schema: any, options: any[]}} Field
 */

/** The field that an annotation spec (its value) makes. */
export function fieldOf(ref, value) {
  const schema = value?.field_schema ?? {};
  const name = parseRef(ref)?.name ?? ref;
  const kind = kindOf(schema);
  return { ref, name, label: value?.name || name, description: value?.description ?? "", kind, schema,
    options: optionsOf(kind, schema) };
}

function kindOf(schema) {
  if (Array.isArray(schema.enum)) return "choice";
  if (schema.type === "boolean") return "boolean";
  if (schema.type === "array" && Array.isArray(schema.items?.enum)) return "choices";
  const isShort = schema.maximum - schema.minimum >= 1 && schema.maximum - schema.minimum <= 9;
  if (schema.type === "integer" && isShort) return "rating";
  if (schema.type === "integer" || schema.type === "number") return "number";
  return schema.type === "string" || !schema.type ? "text" : "json";
}

function optionsOf(kind, schema) {
  if (kind === "choice") return schema.enum;
  if (kind === "choices") return schema.items.enum;
  if (kind === "boolean") return [true, false];
  if (kind !== "rating") return [];
  return Array.from({ length: schema.maximum - schema.minimum + 1 }, (_, step) => schema.minimum + step);
}

/** A choice as it is written. */
export const optionText = (value) => (value === true ? "Yes" : value === false ? "No" : String(value));

/** The JSON Schema of a new field. */
export function schemaOf(kind, options, lowest, highest) {
  const schemas = {
    choice: { type: "string", enum: options }, choices: { type: "array", items: { type: "string", enum: options } },
    rating: { type: "integer", minimum: lowest, maximum: highest }, boolean: { type: "boolean" }, number: { type: "number" },
      text: { type: "string" },
  };
  return schemas[kind];
}

/** Store an annotation spec; resolves to its ref. */
export async function storeField({ name, description = "", kind, options = [], lowest = 1, highest = 5 }) {
  const id = name.toLowerCase().replace(/[^a-z0-9_-]+/g, "-").replace(/^-+|-+$/g, "");
  if (!id) throw new Error("A field name needs a letter or a digit");
  if ((kind === "choice" || kind === "choices") && options.length < 2) throw new Error(`${name}: add at least two choices`);
  if (kind === "rating" && !(highest > lowest && highest - lowest <= 9)) throw new Error(
    `${name}: a rating has two to ten numbers`);
  const val = { name, description, field_schema: schemaOf(kind, options, lowest, highest) };
  const digest = await storeObject(id, val, { builtin_object_class: "AnnotationSpec" });
  return `weave:///${projectId()}/object/${id}:${digest}`;
}

/** The fields of refs; one whose spec is gone has the kind "gone" and cannot be filled in. */
export async function loadFields(refs, abort) {
  const settled = await settle(refs, abort);
  const found = [];
  for (let from = 0; from < settled.length; from += MOST_REFS) {
    const answer = await postProject("/_ui/api/values", { refs: settled.slice(from, from + MOST_REFS) }, abort);
    found.push(...answer.refs);
  }
  return settled.map((ref, index) => {
    const value = found[index]?.value;
    return value?.field_schema ? fieldOf(ref, value) : { ...fieldOf(ref, null), kind: GONE,
      description: "This field was deleted or is not an annotation spec" };
  });
}

/** Refs with a digest in the place of `latest`: labels name the version that they were made by. */
async function settle(refs, abort) {
  if (!refs.some((ref) => ref.endsWith(LATEST))) return refs;
  const newest = new Map((await allFields(abort)).map((field) => [field.ref.replace(/:[^:]*$/, LATEST), field.ref]));
  return refs.map((ref) => newest.get(ref) ?? ref);
}

/** The newest version of every annotation spec of the project, as fields. */
export async function allFields(abort) {
  const { objs } = await postProject("/objs/query", { filter: { base_object_classes: ["AnnotationSpec"], latest_only: true },
    limit: 500 }, abort);
  return objs.map((spec) => fieldOf(`weave:///${projectId()}/object/${spec.object_id}:${spec.digest}`, spec.val));
}
