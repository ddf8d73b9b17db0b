// The bar above a trace: its location, its totals, and links to neighbouring and parent items.
import { h, signal } from "../lib/dom.js";
import { lines } from "../lib/data.js";
import { compact, duration, int, money } from "../lib/format.js";
import { copyButton, stat } from "../lib/panels.js";
import { button, header, keys } from "../lib/parts.js";
import { go, link, path } from "../lib/router.js";

/** The header of a trace page. */
export function traceHeader(trace, view, data) {
  return header({
    crumbs: [["Calls", link("/traces")]],
    title: h("span", { dir: "auto", title: () => name(view) }, () => name(view)),
    extra: [
      h("span.traceid", { title: trace }, trace.slice(0, 8)),
      copyButton(() => trace, "Copy trace id"),
      neighbours(view),
      () => parentLink(view.tree.value, data),
    ],
    actions: () => (view.tree.value ? totals(view.tree.value, data.done.value) : null),
  });
}

const name = (view) => (view.tree.value ? view.tree.value.name(view.tree.value.roots[0]) : "…");

function totals(tree, isWhole) {
  const { input, output, cost, errors, running } = tree.totals;
  const sum = (text) => (isWhole ? text : "…");
  return [
    running ? stat("Running", int(running)) : null,
    stat("Calls", int(tree.columns.total)),
    stat("Duration", sum(duration((tree.until - tree.from) / 1e6))),
    stat("Tokens", h("span", { title: `${int(input)} in, ${int(output)} out` }, sum(compact(input + output)))),
    stat("Cost", sum(cost === null ? "–" : money(cost))),
    stat("Errors", h("span", { class: errors ? "worse" : "" }, sum(int(errors)))),
  ];
}

/** The calls before and after in the list that led here, which that list left in the session. */
function neighbours(view) {
  let ids = [];
  try {
    ids = JSON.parse(sessionStorage.getItem("heddle.list") ?? "[]");
  } catch {
    // Without the list there is just no way to its neighbours.
  }
  const tree = () => view.tree.value;
  const place = () => Math.max(ids.indexOf(view.callId()), tree() ? ids.indexOf(tree().columns.id[tree().roots[0]]) : -1);
  const to = (step) => (place() < 0 ? null : (ids[place() + step] ?? null));
  const move = (step) => to(step) && go(link(path`/calls/${to(step)}`));
  if (!Array.isArray(ids) || ids.length < 2) return null;
  keys({ "[": [() => move(-1), "previous call in the list"], "]": [() => move(1), "next call in the list"] });
  return h(
    "span.neighbours",
    [
      ["left", -1, "Previous call in the list ([)"],
      ["chevron", 1, "Next call in the list (])"],
    ].map(([iconName, step, label]) =>
      button(null, () => move(step), { kind: "quiet", iconName, label, disabled: () => !to(step) }),
    ),
  );
}

/** The trace of the call that a root of this one names as its parent, if it is stored elsewhere. */
function parentLink(tree, data) {
  const wanted = tree && data.done.value ? [...tree.columns.orphans.values()][0] : null;
  if (!wanted) return null;
  const found = signal(null);
  lines("/calls/stream_query", { filter: { call_ids: [wanted] }, columns: ["id", "trace_id"] }).then(
    ([call]) => {
      found.value = call ?? false;
    },
    () => {},
  );
  return () => {
    if (found.value === null) return null;
    if (found.value === false) return h("span.badge.warn", { title: `Parent ${wanted} not found` }, "parent missing");
    return h("a.badge.good", { href: link(path`/traces/${found.value.trace_id}`, { call: found.value.id }) }, "Parent trace");
  };
}
