// What went wrong in a call, as people read it: SDKs send JSON with a traceback, or the traceback as text.
import { h } from "./dom.js";
import { longText } from "./json.js";

/**
 * The message of an exception, its frames (innermost last) and what else there is of it as text.
 * @param {string|null} exception
 * @returns {{message: string, frames: {file: string, line: number, name: string, text: string}[], rest: string}}
 */
export function readProblem(exception) {
  const text = String(exception ?? "").trim();
  const body = parsed(text);
  if (body) {
    const frames = (Array.isArray(body.traceback) ? body.traceback : []).map((frame) => ({
      file: String(frame.filename ?? ""), line: frame.line_number, name: String(frame.function_name ?? ""),
        text: String(frame.text ?? ""),
    }));
    return { message: body.type ? `${body.type}: ${body.message}` : String(body.message), frames, rest: "" };
  }
  const lines = text.split("\n");
  if (lines.length > 1 && lines[0].startsWith("Traceback")) return { message: lines.at(-1), frames: [], rest: text };
  return { message: lines[0] ?? "", frames: [], rest: lines.length > 1 ? text : "" };
}

/** The message alone, on one line. */
export const problemText = (exception) => readProblem(exception).message;

/** The message with its traceback folded away; null where nothing went wrong. */
export function problemView(exception) {
  if (!exception) return null;
  const { message, frames, rest } = readProblem(exception);
  const frame = ({ file, line, name, text }) => h("li",
    h("span.faint", { title: file }, `${file.split("/").slice(-2).join("/")}:${line} `), h("b", name), text && h("pre", text));
  return h("div.problembox", { role: "group", "aria-label": "Error" }, h("p", { dir: "auto" }, longText(message, 1000)),
    frames.length ? h("details", h("summary", `Traceback, ${frames.length} frames`), h("ol", frames.map(frame))) : null,
    rest ? h("details", h("summary", "Traceback"), h("pre", { tabindex: 0 }, longText(rest))) : null);
}

function parsed(text) {
  if (!text.startsWith("{")) return null;
  try {
    const body = JSON.parse(text);
    return body && typeof body === "object" && "message" in body ? body : null;
  } catch {
    return null;
  }
}
