// One trace: all its calls as a tree with a waterfall, by time or as a flame graph, and the selected call next to it.
import { effect, h, untrack } from "../lib/dom.js";
import { int, plural } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { backToList, button, failure, header, keys, later, searchBox, segments, skeleton, title } from "../lib/parts.js";
import { go, link, query, setQuery } from "../lib/router.js";
import { splitter } from "../lib/splitter.js";
import { CallDetail } from "./call_detail.js";
import { axis } from "./trace_axis.js";
import { traceData } from "./trace_data.js";
import { traceHeader } from "./trace_header.js";
import { traceRows } from "./trace_rows.js";
import { VIEWS, makeView, nextError, toggleAll, toggleZoom } from "./trace_view.js";

const WHY_GONE = "It may have been deleted, be past the project's retention, or not have arrived yet.";

/** The page of a trace; the query holds the call, the view, the filter and what is zoomed on. */
export default function Trace({ trace }) {
  title("Trace");
  const data = traceData(trace);
  const view = makeView(data);
  const detail = CallDetail({
    callId: view.callId,
    below: (id) => usedBelow(data.tree.value, id),
    before: (id) => answerBefore(data.tree.value, id),
    onchange: (what) => changed(what, view, data),
  });
  const pane = h("section.tracepane", { "aria-label": "Calls of the trace", class: () => (usedAny(view.tree.value) ? "" : "unused") },
    tools(view), body(view), () => missingNote(data));
  bindKeys(view);
  effect(() => view.tree.value && title(view.tree.value.name(view.tree.value.roots[0])));
  return h("div.page.trace", () =>
    data.error.value && !data.tree.value
      ? gone(trace, data)
      : [
          traceHeader(trace, view, data),
          h(
            "div.split.listdetail",
            { class: () => (query("call") ? "chosen" : "") },
            pane,
            h(
              "section.detailpane",
              { "aria-label": "Chosen call", tabindex: 0 },
              backToList("All calls of the trace", () => setQuery({ call: null }, false)),
              detail,
            ),
            splitter({ label: "Width of the tree", name: "trace" }),
          ),
        ],
  );
}

function gone(trace, data) {
  const head = header({ crumbs: [["Calls", link("/traces")]], title: "Trace" });
  if (data.error.value.status !== 404) return [head, failure(data.error.value, data.reload)];
  return [
    head,
    empty({
      title: "Trace not found",
      text: `This project has no trace ${trace}. ${WHY_GONE}`,
      action: h(
        "div.actions",
        button("Try again", data.reload, { iconName: "refresh" }),
        h("a.button", { href: link("/traces") }, "All calls"),
      ),
    }),
  ];
}

/** Whether a call of the trace used tokens or money; the columns of both are left out where none did. */
const usedAny = (tree) => Boolean(tree && (tree.totals.input + tree.totals.output || tree.totals.cost));

function usedBelow(tree, id) {
  const index = tree?.columns.positions.get(id);
  return index === undefined || tree.size[index] < 2 ? null : tree.used(index);
}

/** The model's answer that led to a call: its id and name. */
function answerBefore(tree, id) {
  const index = tree?.columns.positions.get(id);
  const before = index === undefined || tree.kind(index) === "llm" ? -1 : tree.answerBefore(index);
  return before < 0 ? null : { id: tree.columns.id[before], name: tree.name(before) };
}

function bindKeys(view) {
  keys({
    j: [() => view.step(1), "next call"],
    k: [() => view.step(-1), "previous call"],
    e: [() => nextError(view, 1), "next error"],
    E: [() => nextError(view, -1), "previous error"],
    z: [() => toggleZoom(view), "zoom to the call, or back"],
    c: [() => toggleAll(view), "collapse or expand all"],
    "/": [() => document.getElementById("trace-filter")?.focus(), "filter"],
    Escape: [() => setQuery({ zoom: null, q: null }), "whole trace"],
  });
}

function tools(view) {
  const errors = () => view.tree.value?.totals.errors ?? 0;
  return h(
    "div.tracetools",
    searchBox(
      "Filter calls",
      () => query("q") ?? "",
      (text) => setQuery({ q: text }),
      { id: "trace-filter", onkeydown: (event) => leaveFilter(event, view) },
    ),
    segments("View", VIEWS, view.mode, (name) => setQuery({ view: name === "tree" ? null : name })),
    () =>
      errors()
        ? button([int(errors()), errors() === 1 ? " error" : " errors", " ", h("kbd", "e")], () => nextError(view, 1), {
            kind: "danger",
            title: "Next error (e), previous error (E)",
          })
        : null,
    () =>
      view.mode() === "tree"
        ? button(null, () => toggleAll(view), {
            iconName: view.closed.value.size ? "expand" : "collapse",
            label: view.closed.value.size ? "Expand all (c)" : "Collapse all (c)",
          })
        : null,
    () =>
      view.mode() === "chat"
        ? null
        : button(
            () => (query("zoom") ? "Whole trace" : ["Zoom ", h("kbd", "z")]),
            () => (query("zoom") ? setQuery({ zoom: null }, false) : toggleZoom(view)),
            { "aria-pressed": () => String(Boolean(query("zoom"))) },
          ),
  );
}

function leaveFilter(event, view) {
  if (event.key !== "Enter" && event.key !== "ArrowDown" && event.key !== "Escape") return;
  if (event.key === "Escape") setQuery({ q: null });
  event.preventDefault();
  if (view.selected() < 0 || view.position() < 0) view.step(0);
  view.box?.focus();
}

function body(view) {
  return () => {
    const mode = view.mode();
    return untrack(() =>
      mode === "flame"
        ? later(() => import("./trace_flame.js"), ({ flame }) => flame(view), 6)
        : mode === "chat"
          ? later(() => import("./trace_chat.js"), ({ traceChat }) => traceChat(view), 6)
          : waterfall(view),
    );
  };
}

function waterfall(view) {
  const rows = traceRows(view);
  view.box = rows;
  let revealed = "";
  effect(() => {
    const place = view.position();
    if (place < 0 || view.callId() === revealed) return;
    revealed = view.callId();
    requestAnimationFrame(() => rows.reveal(place));
  });
  return [axis(view), rows, () => noRows(view)];
}

function noRows(view) {
  if (!view.tree.value) return skeleton(12);
  return view.rows.value.length
    ? null
    : empty({
        title: "No matching calls",
        text: "The filter matches names, kinds, models, ids, “error” and “running”.",
        action: button("Clear filter", () => setQuery({ q: null })),
      });
}

/** What of the trace is missing in the tree, and why. */
function missingNote(data) {
  const { columns } = data.tree.value ?? {};
  if (!columns) return null;
  if (data.error.value) return failure(data.error.value, data.reload);
  return columns.total > columns.shown
    ? h("p.tracenote", `The first ${int(columns.shown)} of ${plural(columns.total, "call")} are shown.`)
    : null;
}

function changed(what, view, data) {
  if (what === "feedback") return;
  if (what !== "deleted") {
    data.reload();
    return;
  }
  const tree = view.tree.value;
  const index = view.selected();
  if (index < 0 || tree.depth[index] === 0) {
    go(link("/traces"));
    return;
  }
  setQuery({ call: tree.columns.id[tree.columns.parent[index]] });
  data.reload();
}
