// What differs between two versions of a dataset: rows that were added, removed or changed, cell by cell.
import { h } from "../lib/dom.js";
import { resource } from "../lib/data.js";
import { int } from "../lib/format.js";
import { lineText, valueLine } from "../lib/line.js";
import { columnsOf } from "../lib/importers.js";
import { empty } from "../lib/panels.js";
import { loaded } from "../lib/parts.js";
import { query, setQuery } from "../lib/router.js";
import { diffRows } from "../lib/rowdiff.js";
import { pager } from "../lib/table.js";
import { allRows } from "./dataset_rows.js";
import { tableOf } from "./dataset_publish.js";

const MOST = 20_000;
const PAGE = 100;
const TEXTS = { added: "added", removed: "removed", changed: "changed" };

/** The difference to the version that the address names by `compare`, else to the one before. */
export function datasetChanges(versions, version) {
  const other = () => versions.find(({ digest }) => digest === query("compare"))
    ?? versions.find(({ version_index: index }) => index === version.version_index - 1);
  const pick = h("label.comparepick", "Compared with ", h("select", {
    "aria-label": "Compared version", onchange: (event) => setQuery({ compare: event.target.value, page: null }),
  }, versions.filter(({ digest }) => digest !== version.digest).map((item) =>
    h("option", { value: item.digest, selected: item.digest === other()?.digest }, `v${item.version_index}`))));
  const state = resource(() => other() && [tableOf(other()), tableOf(version)], load);
  return h("div.datasetchanges",
    () => (other() ? [h("div.bar-of-tools", pick, () => state.data.value && figures(state.data.value)),
    loaded(state, (found) =>
      (found.changes.length ? changeTable(found)
      : empty({ title: "The rows are the same", text: "These versions differ only in their names and labels." })))]
    : empty({ title: "Only one version",
      text: "Edit the rows and publish a version to see what changed." })));
}

async function load([before, after], abort) {
  const read = async (digest) => {
    const rows = [];
    for await (const part of allRows(digest, MOST, { slice: 5000, abort })) {
      rows.push(...part);
      if (part.length < 5000) break;
    }
    return rows;
  };
  const [one, other] = await Promise.all([read(before), read(after)]);
  return { ...diffRows(one, other), isCut: one.length >= MOST || other.length >= MOST };
}

function figures({ changes, same, key, isCut }) {
  const count = (kind) => changes.filter((change) => change.kind === kind).length;
  return h("div.legend", h("span.badge.good", `${int(count("added"))} added`),
    h("span.badge.warn", `${int(count("changed"))} changed`),
    h("span.badge.error", `${int(count("removed"))} removed`), h("span", `${int(same)} the same`),
    h("span.faint", key ? `rows matched by ${key}` : "rows matched by position", isCut && `, only the first ${int(MOST)} rows`));
}

function changeTable({ changes }) {
  const columns = columnsOf(changes.slice(0, 500).flatMap(({ before, after }) => [before ?? {}, after ?? {}]));
  const from = () => Number(query("page") ?? 0) * PAGE;
  const turn = (step) => () => setQuery({ page: String(from() / PAGE + step).replace(/^0$/, "") }, false);
  return [
    h("div.tablebox", { tabindex: 0, role: "region", "aria-label": "Changed rows" }, h("table.table.difftable",
      h("thead", h("tr", h("th.number", { scope: "col" }, "Row"), h("th", { scope: "col" }, "Change"),
        columns.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", () => changes.slice(from(), from() + PAGE).map((change) => changeRow(change, columns))))),
    changes.length > PAGE
      && pager(() => `${int(from() + 1)}–${int(Math.min(changes.length, from() + PAGE))} of ${int(changes.length)}`,
      () => (from() > 0 ? turn(-1) : null), () => (from() + PAGE < changes.length ? turn(1) : null)),
  ];
}

function changeRow({ kind, index, before, after, columns: changed }, columns) {
  const cell = (name) => {
    if (!changed.includes(name)) return h("td", { dir: "auto" }, valueLine((after ?? before)[name], { length: 80 }));
    return h("td.cellchange", { dir: "auto" }, name in before && h("del", lineText(before[name], 80) ? valueLine(before[name], { length: 80 }) : "empty"), " ",
      name in after && h("ins", lineText(after[name], 80) ? valueLine(after[name], { length: 80 }) : "empty"));
  };
  return h("tr", { class: kind }, h("td.number", int(index + 1)),
    h("td", h("span.badge", { class: { added: "good", removed: "error", changed: "warn" }[kind] }, TEXTS[kind])),
    columns.map(cell));
}
