// Groups of failed calls: how they read, where their calls are, and what can be done with them.
import { h } from "./dom.js";
import { link } from "./router.js";
import { sameRange } from "./timerange.js";

/** The list of calls with exactly those of a group. */
export const callsOf = (group, range) =>
  link("/traces", { f: JSON.stringify([["op", "is", group.op], ["error", "is", group.group]]), roots: "0", ...sameRange(range) });

/** What a group says, on one line. */
export const headline = ({ type, message }) => [type && h("b", type), type && message ? ": " : null, message || (type ? "" : "No message")];

/**
 * What can be done with the calls of a group, as entries of a menu; `run` gets the name of what was chosen.
 * @returns {[string, () => Promise<any>, any][]}
 */
export function actionsOf(run) {
  return [
    ["Add to dataset…", () => run("dataset"), { iconName: "data", needs: "write" }],
    ["Add to annotation queue…", () => run("queue"), { iconName: "annotate", needs: "write" }],
    ["Monitor…", () => run("monitor"), { iconName: "scorer", needs: "write" }],
    ["Alert…", () => run("alert"), { iconName: "bell", needs: "write" }],
    ["Gate in CI…", () => run("gate"), { iconName: "code" }],
  ];
}
