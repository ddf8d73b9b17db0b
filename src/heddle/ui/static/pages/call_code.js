// The source of a call's op, as the SDK stored it with the op's version.
import { h } from "../lib/dom.js";
import { codeView } from "../lib/code.js";
import { postProject, request, resource, textOf } from "../lib/data.js";
import { parseRef } from "../lib/format.js";
import { empty, refLink } from "../lib/panels.js";
import { loaded } from "../lib/parts.js";

/** The code that ran, or why there is none. */
export function callCode(call) {
  const ref = parseRef(call.op_name);
  if (!ref || ref.kind !== "op")
    return none("Its op has no stored version: OpenTelemetry spans and calls sent over HTTP have no code.");
  const source = resource(() => ref, readSource);
  return loaded(source, ({ text }) =>
    text === null ? none("Its op was stored without source code.") : [h("p", refLink(call.op_name)), codeView(text)],
  );
}

const none = (text) => empty({ title: "No code for this call", text: `${text} Functions decorated with @weave.op include theirs.` });

async function readSource(ref, abort) {
  const project = `${ref.entity}/${ref.project}`;
  const { obj } = await postProject("/obj/read", { project_id: project, object_id: ref.name, digest: ref.digest }, abort);
  const digest = obj.val?.files?.["obj.py"];
  if (!digest) return { text: null };
  const body = { project_id: project, digest };
  return { text: await textOf(await request("POST", "/file/content", body, abort)) };
}
