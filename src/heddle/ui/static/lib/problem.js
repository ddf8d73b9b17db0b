// What went wrong in a call, as people read it: SDKs send JSON with a traceback, or the traceback as text.
import { h } from "./dom.js";
import { listOf, plural } from "./format.js";
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
    const frames = listOf(body.traceback).map((frame) => ({
      file: String(frame?.filename ?? ""), line: frame?.line_number ?? "", name: String(frame?.function_name ?? ""),
        text: String(frame?.text ?? ""),
    }));
    return { message: body.type ? `${body.type}: ${body.message}` : body.message, frames, rest: "" };
  }
  const frames = framesIn(text);
  const lines = text.split("\n");
  if (/^(\s*\n)*Traceback/.test(text)) return { message: lines.findLast((one) => /^\S/.test(one)) ?? lines[0], frames, rest: text };
  return { message: lines[0] ?? "", frames, rest: lines.length > 1 ? text : "" };
}

const PYTHON_FRAME = /^ {2}File "([^"\n]+)", line (\d+)(?:, in ([^\n]+))?\n((?: {4,}[^\n]*\n?)*)/gm;
const SCRIPT_FRAME = /^\s+at (?:(.+?) \()?((?:file:|node:|\/|[A-Za-z]:\\|\w)[^\s()]*?):(\d+):\d+\)?$/gm;

/** The frames of a traceback of Python, or of a stack of JavaScript, which is told from the inside. */
function framesIn(text) {
  const found = [...text.matchAll(PYTHON_FRAME)].map(([, file, line, name, code]) =>
    ({ file, line: Number(line), name: name ?? "", text: code.replace(/^ {4}/gm, "").replace(/\n\s*[~^]+\s*$/, "").trimEnd() }));
  return found.length ? found
    : [...text.matchAll(SCRIPT_FRAME)].map(([, name, file, line]) => ({ file, line: Number(line), name: name ?? "", text: "" })).reverse();
}

/** The message alone, on one line. */
export const problemText = (exception) => readProblem(exception).message;

/** The message with its traceback folded away; null where nothing went wrong. */
export function problemView(exception) {
  if (!exception) return null;
  const { message, frames, rest } = readProblem(exception);
  const where = ({ file, line, name }) =>
    [h("span.faint", { title: file }, `${file.split("/").slice(-2).join("/")}:${line} `), h("b", name)];
  // The innermost frame is what people look for first.
  const frame = (found, place) => h("li", found.text
    ? h("details", { open: place === frames.length - 1 }, h("summary", where(found)), h("pre", found.text)) : where(found));
  return h("div.problembox", { role: "group", "aria-label": "Error" }, h("p", { dir: "auto" }, longText(message, 1000)),
    frames.length ? h("details", h("summary", `Traceback, ${plural(frames.length, "frame")}`),
      h("ol", frames.map(frame))) : null,
    rest ? h("details", h("summary", frames.length ? "As it was sent" : "Traceback"), h("pre", { tabindex: 0 }, longText(rest))) : null);
}

function parsed(text) {
  if (!text.startsWith("{")) return null;
  try {
    const body = JSON.parse(text);
    return typeof body?.message === "string" ? body : null;
  } catch {
    return null;
  }
}
