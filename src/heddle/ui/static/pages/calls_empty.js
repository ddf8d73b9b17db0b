// The list of calls with nothing in it: how the first call comes, or how to see more.
import { h } from "../lib/dom.js";
import { empty } from "../lib/panels.js";
import { button } from "../lib/parts.js";
import { projectId, setQuery } from "../lib/router.js";
import { keyHint, serverAddress, setupLines } from "../lib/setup.js";

/** For a project without any call. */
export function teach() {
  return empty({
    title: "No calls yet",
    text: "Every call of a function with @weave.op shows here, with its inputs, its output, its time and its cost. Three lines in a shell send the first:",
    code: setupLines(projectId()),
    action: [h("p", keyHint()), h("p", "This list fills itself as soon as calls arrive. OpenTelemetry traces are taken at ",
      h("code", `${serverAddress()}/otel/v1/traces`), ".")],
  });
}

/** For filters that nothing fits. */
export function noMatch(names) {
  const all = [...names, "view", "op", "status", "kind", "model", "user", "thread", "after", "before", "peek"];
  const clear = () => setQuery({ ...Object.fromEntries(all.map((name) => [name, null])), roots: "0" }, false);
  return empty({ title: "No calls match", text: "Nothing that is stored fits the filters and the time range.",
    action: button("Show all calls", clear) });
}
