// The tree and the waterfall of a trace, one row of both per call.
import { h } from "../lib/dom.js";
import { compact, duration, money, plural } from "../lib/format.js";
import { icon } from "../lib/parts.js";
import { rowHeight, windowed } from "../lib/windowed.js";

const ROW = rowHeight(28);
const DEEPEST_INDENT = 10;
const PAGE = 20;

/**
 * The rows; `view` is what trace.js shows: {tree, rows, isFlat, closed, time, selected, pick, toggle}.
 * @param {any} view
 */
export function traceRows(view) {
  const box = windowed({
    rows: () => view.rows.value,
    height: ROW,
    make: (item, place) => row(view, item, place),
    attributes: {
      role: "treegrid",
      tabindex: 0,
      "aria-label": "Calls of the trace",
      class: "tracerows",
      hidden: () => !view.rows.value.length,
      "aria-rowcount": () => view.rows.value.length,
      "aria-colcount": 5,
      "aria-activedescendant": () => (view.position() >= 0 ? `span-${view.selected()}` : null),
      onkeydown: (event) => navigate(view, event),
    },
  });
  return box;
}

function navigate(view, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const moves = {
    ArrowDown: () => view.step(1),
    ArrowUp: () => view.step(-1),
    PageDown: () => view.step(PAGE),
    PageUp: () => view.step(-PAGE),
    Home: () => view.step(-Infinity),
    End: () => view.step(Infinity),
    ArrowRight: () => inwards(view),
    ArrowLeft: () => outwards(view),
  };
  if (!moves[event.key]) return;
  event.preventDefault();
  moves[event.key]();
}

function inwards(view) {
  const index = view.selected();
  if (view.isClosed(index)) view.toggle(index);
  else view.step(1);
}

function outwards(view) {
  const index = view.selected();
  const tree = view.tree.value;
  if (!view.isFlat() && tree.size[index] > 1 && !view.isClosed(index)) view.toggle(index);
  else if (tree.depth[index] > 0) view.pick(tree.columns.parent[index]);
}

function row(view, item, place) {
  const tree = () => view.tree.value;
  const index = () => item.value;
  const depth = () => (view.isFlat() ? 0 : tree().depth[index()]);
  const hasChildren = () => !view.isFlat() && tree().size[index()] > 1;
  return h(
    "div.tracerow",
    {
      role: "row",
      id: () => `span-${index()}`,
      "aria-level": () => depth() + 1,
      "aria-rowindex": () => place.value + 1,
      "aria-expanded": () => (hasChildren() ? String(!view.isClosed(index())) : null),
      "aria-selected": () => String(view.selected() === index()),
      class: () => (view.isDimmed(index()) ? "context" : depth() === 0 && !view.isFlat() ? "top-level" : ""),
      title: () => tooltip(tree(), index()),
      onclick: () => view.pick(index()),
    },
    nameCell(view, index, depth, hasChildren),
    waterfallCell(view, index),
    usedCell("usedtokens", tree, index, ({ input, output }) => input + output, compact),
    usedCell("usedcost", tree, index, ({ cost }) => cost, money),
    h("span.length", { role: "gridcell" }, () =>
      tree().isRunning(index()) ? "running" : duration(tree().columns.length[index()] / 1e6),
    ),
  );
}

/** A figure of a call with all below it; before it that of the call alone, where it used some itself and the others, too. */
function usedCell(name, tree, index, figure, write) {
  const read = () => [figure(tree().usedByItself(index())), figure(tree().used(index()))];
  const isSmall = (own, whole) => Math.abs(whole - own) < 1e-9;
  return h("span.used", { role: "gridcell", class: name, title: () => {
    const [own, whole] = read();
    return whole ? `${write(own ?? 0) || 0} itself, ${write(whole)} with child calls` : null;
  } }, () => {
    const [own, whole] = read();
    if (!whole) return null;
    return [own && !isSmall(own, whole) ? h("span.faint", `${write(own)} / `) : null, write(whole)];
  });
}

function tooltip(tree, index) {
  const used = tree.columns.usage.get(index);
  const parts = [
    `${tree.name(index)} · ${tree.kind(index)}`,
    `starts at ${duration(tree.columns.start[index] / 1e6)}`,
    used &&
      `${used.models.map((model) => tree.columns.models[model]).join(", ")}: ${plural(used.input, "token", "tokens", compact)} in, ${compact(used.output)} out`,
    used && money(used.cost),
    tree.depth[index] > 0 ? `depth ${tree.depth[index]}` : "",
  ];
  return parts.filter(Boolean).join("\n");
}

function nameCell(view, index, depth, hasChildren) {
  const tree = () => view.tree.value;
  const isClosed = () => hasChildren() && view.isClosed(index());
  const hiddenErrors = () => (isClosed() ? tree().errorsBelow(index()) : 0);
  const fold = (event) => {
    event.stopPropagation();
    view.toggle(index());
  };
  return h(
    "span.tracename",
    { role: "gridcell", style: () => ({ "--depth": Math.min(depth(), DEEPEST_INDENT) }) },
    h(
      "button.fold",
      {
        type: "button",
        tabindex: -1,
        "aria-hidden": "true",
        class: () => (!hasChildren() ? "leaf" : isClosed() ? "" : "open"),
        onclick: fold,
      },
      icon("chevron"),
    ),
    () => (depth() > DEEPEST_INDENT ? h("small.depth", depth()) : null),
    h("i.kindmark", { "data-kind": () => tree().kind(index()) }),
    h("span.spanname", { dir: "auto" }, () => tree().name(index())),
    () => (tree().isError(index()) ? h("span.badge.error", "error") : null),
    () =>
      isClosed()
        ? h(
            "span.badge",
            { class: hiddenErrors() ? "error" : "" },
            `${tree().size[index()] - 1}${hiddenErrors() ? `, ${hiddenErrors()} failed` : ""}`,
          )
        : null,
  );
}

function waterfallCell(view, index) {
  const place = () => {
    const tree = view.tree.value;
    const { from, until } = view.time.value;
    const start = (tree.columns.start[index()] - from) / (until - from);
    const end = (tree.end(index()) - from) / (until - from);
    return { start, end };
  };
  const outside = () => {
    const { start, end } = place();
    return end < 0 ? "before" : start > 1 ? "after" : "";
  };
  const status = () => (view.tree.value.isError(index()) ? "failed" : view.tree.value.isRunning(index()) ? "unfinished" : "");
  return h(
    "span.waterfall",
    { role: "gridcell", "aria-hidden": "true" },
    h("i", {
      "data-kind": () => view.tree.value.kind(index()),
      class: () => `${status()} ${outside()}`,
      style: () => {
        const { start, end } = place();
        const left = Math.min(1, Math.max(0, start));
        const width = Math.max(0, Math.min(1, end) - left);
        return { left: `${left * 100}%`, width: `${width * 100}%` };
      },
    }),
  );
}
