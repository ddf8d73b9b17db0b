// The list of calls with nothing in it: how the first call comes, or how to see more.
import { firstCall } from "../lib/firstcall.js";
import { empty } from "../lib/panels.js";
import { button } from "../lib/parts.js";
import { projectId, setQuery } from "../lib/router.js";

/** For a project without any call. */
export function teach(reload) {
  return empty({
    title: "No calls yet",
    text: "Traced calls appear here with their inputs, output, latency and cost. Send the first one from a shell:",
    action: firstCall(projectId(), reload),
  });
}

/** For filters that nothing fits. */
export function noMatch(names) {
  const all = [...names, "view", "op", "status", "kind", "model", "user", "thread", "after", "before", "peek"];
  const clear = () => setQuery({ ...Object.fromEntries(all.map((name) => [name, null])), roots: "0" }, false);
  return empty({ title: "No calls match", text: "No call matches the filters and the time range.",
    action: button("Show all calls", clear) });
}
