// The edits of a dataset that are not published yet, over stored rows; every step can be taken back.
import { computed, signal } from "../lib/dom.js";
import { columnKind } from "../lib/cells.js";
import { same } from "../lib/rowdiff.js";

/**
 * Edits: `changes` holds whole rows by their place in the stored table, `removed` places, `groups` new rows by the place
 * before which they stand. Columns are known by keys: the stored name, or `+1` and so on for new ones.
 * @typedef {{changes: Map<number, any>, removed: Set<number>, groups: Map<number, any[]>, names: Map<string, string>,
 *   dropped: Set<string>, added: string[], kinds: Map<string, string>}} Edits
 */

/** @returns {Edits} */
const nothing = () => ({ changes: new Map(), removed: new Set(), groups: new Map(), names: new Map(), dropped: new Set(),
  added: [], kinds: new Map() });
let newColumns = 0;
const drafts = new Map();
addEventListener("beforeunload", (event) => [...drafts.values()].some(({ edits }) => summary(edits).any) && event.preventDefault());

/**
 * A sheet over a table; `place` says which stored rows are shown, and where: null for all in their order, else a function
 * that gives the list's length and its rows.
 * @param {() => any} table what openTable gives
 * @param {() => {count: number, row: (place: number) => any, ensure?: (places: number[]) => any}|null} list
 * @param {string} name under which the edits are kept while other pages are open
 */
export function makeSheet(table, list, name) {
  // Unpublished edits outlive the page, so that opening a call does not lose work.
  const draft = drafts.get(name) ?? { edits: nothing(), originals: new Map(), past: [], future: [] };
  drafts.set(name, draft);
  const edits = signal(draft.edits);
  const known = signal([]);
  const sampled = signal(new Map());
  const { originals, past, future } = draft;

  const groups = computed(() => {
    let sum = 0;
    return [...edits.value.groups].filter(([, rows]) => rows.length).sort(([one], [other]) => one - other)
      .map(([anchor, rows]) => ({ anchor, rows, first: anchor + sum, end: anchor + (sum += rows.length) }));
  });
  const extra = computed(() => groups.value.reduce((sum, group) => sum + group.rows.length, 0));
  const count = () => (list()?.count ?? table().count) + extra.value;

  /** Where a row of the grid comes from: {stored, place} or {anchor, offset}. */
  const source = (index) => {
    if (list()) {
      const size = list().count;
      if (index < size) return { stored: true, place: index };
      let rest = index - size;
      for (const group of groups.value) {
        if (rest < group.rows.length) return { stored: false, anchor: group.anchor, offset: rest };
        rest -= group.rows.length;
      }
      return { stored: true, place: index };
    }
    let before = 0;
    for (const group of groups.value) {
      if (index < group.first) break;
      if (index < group.end) return { stored: false, anchor: group.anchor, offset: index - group.first };
      before += group.rows.length;
    }
    return { stored: true, place: index - before };
  };
  const storedRow = (place) => (list() ?? table()).row(place);
  const view = (index) => {
    const from = source(index);
    if (!from.stored) return { values: edits.value.groups.get(from.anchor)[from.offset], before: null, state: "added",
      number: null };
    const { index: at, values } = storedRow(from.place);
    const { changes, removed } = edits.value;
    const changed = at === null ? undefined : changes.get(at);
    return { values: changed ?? values, before: changed ? originals.get(at) : null, state: removed.has(at) ? "removed" : changed
      ? "changed" : "", number: at === null ? null : at + 1 };
  };

  const step = (change) => {
    const now = edits.peek();
    const next = { ...now, changes: new Map(now.changes), removed: new Set(now.removed), groups: new Map(now.groups),
      names: new Map(now.names), dropped: new Set(now.dropped), added: [...now.added], kinds: new Map(now.kinds) };
    change(next);
    past.push(now);
    if (past.length > 200) past.shift();
    future.length = 0;
    edits.value = draft.edits = next;
  };
  const jump = (from, to) => {
    const next = from.pop();
    if (!next) return false;
    to.push(edits.peek());
    edits.value = draft.edits = next;
    return true;
  };

  const columns = computed(() => {
    const { names, dropped, added, kinds } = edits.value;
    const kept = known.value.filter((key) => !dropped.has(key));
    return [...kept, ...added].map((key) => ({
      key, name: names.get(key) ?? key, kind: kinds.get(key) ?? sampled.value.get(key) ?? "text",
      state: added.includes(key) ? "added" : names.has(key) ? "changed" : "",
    }));
  });

  return {
    edits, columns, count, view, source, groups,
    undo: () => jump(past, future),
    redo: () => jump(future, past),
    reset() { past.length = future.length = 0; originals.clear(); edits.value = draft.edits = nothing(); },
    /** Learn columns and their kinds from rows that were loaded. */
    learn(rows) {
      const names = known.peek();
      const fresh = [...new Set(rows.flatMap((row) => Object.keys(row ?? {})))].filter((name) => !names.includes(name));
      if (!fresh.length) return;
      known.value = [...names, ...fresh];
      sampled.value = new Map(
        [...sampled.peek(), ...fresh.map(
        (name) => /** @type {[string, string]} */ ([name, columnKind(rows.map((row) => row?.[name]))]))]);
    },
    /** Have the stored rows at places of the grid loaded. */
    load(indices) {
      const places = indices.map(source).filter((from) => from.stored).map((from) => from.place);
      return Promise.resolve((list() ?? table()).ensure?.(places));
    },
    /** Change cells [{row, key, value}]; rows beyond the end are added. All rows must have been loaded. */
    set(cells) {
      const total = count();
      const end = (edits.peek().groups.get(table().count) ?? []).length;
      step((next) => {
        for (const { row, key, value } of cells) {
          if (row >= total) appendCell(next, table().count, end + row - total, key, value);
          else setCell(next, source(row), key, value);
        }
      });
    },
    insert(at, rows) {
      const total = count();
      const from = at >= total ? null : source(at);
      step((next) => {
        if (from && !from.stored) splice(next, from.anchor, from.offset, rows);
        else {
          const before = at > 0 && at <= total ? source(at - 1) : null;
          if (before && !before.stored) splice(next, before.anchor, before.offset + 1, rows);
          else splice(next, from && !list() ? from.place : table().count, 0, rows);
        }
      });
    },
    append(rows) { step((next) => splice(next, table().count, (next.groups.get(table().count) ?? []).length, rows)); },
    /** Take all stored rows out and put others in. */
    replace(rows) {
      const size = table().count;
      step((next) => {
        next.changes.clear();
        next.groups.clear();
        for (let index = 0; index < size; index++) next.removed.add(index);
        splice(next, size, 0, rows);
      });
    },
    /** Mark stored rows as removed (or, when all are, as kept again) and drop new ones. */
    remove(indices) {
      const from = indices.map(source);
      const stored = from.filter((item) => item.stored).map((item) => storedRow(item.place).index)
        .filter((index) => index !== null);
      step((next) => {
        const isBack = stored.length === from.length && stored.every((index) => next.removed.has(index));
        for (const index of stored) isBack ? next.removed.delete(index) : next.removed.add(index);
        const gone = new Map();
        for (const item of from) if (!item.stored) gone.set(item.anchor, (gone.get(item.anchor) ?? new Set()).add(item.offset));
        for (const [anchor, offsets] of gone) next.groups.set(anchor, next.groups.get(anchor)
          .filter((_, offset) => !offsets.has(offset)));
      });
    },
    addColumn(name, kind = "text") {
      const key = `+${++newColumns}`;
      step((next) => { next.added.push(key); next.names.set(key, name); next.kinds.set(key, kind); });
      return key;
    },
    rename: (key, name) => step((next) => { next.names.set(key, name); if (name === key) next.names.delete(key); }),
    drop: (key) => step((next) => { next.dropped.add(key); next.added = next.added.filter((one) => one !== key); }),
    setKind: (key, kind) => step((next) => { next.kinds.set(key, kind); }),
    /** The key of a column by its name, made if there is none. */
    keyOf(name, kind) { return columns.peek().find((column) => column.name === name)?.key ?? this.addColumn(name, kind); },
    original: (index) => originals.get(index),
  };

  function setCell(next, from, key, value) {
    if (!from.stored) {
      const rows = [...next.groups.get(from.anchor)];
      rows[from.offset] = { ...rows[from.offset], [key]: value };
      next.groups.set(from.anchor, rows);
      return;
    }
    const { index, values } = storedRow(from.place);
    if (index === null || !values) return;
    if (!originals.has(index)) originals.set(index, values);
    const row = { ...(next.changes.get(index) ?? values) };
    // A field that was not there and gets nothing stays away.
    if (value === null && !(key in originals.get(index))) delete row[key];
    else row[key] = value;
    if (same(row, originals.get(index))) next.changes.delete(index);
    else next.changes.set(index, row);
  }
}

function appendCell(next, anchor, offset, key, value) {
  const rows = [...(next.groups.get(anchor) ?? [])];
  while (rows.length <= offset) rows.push({});
  rows[offset] = { ...rows[offset], [key]: value };
  next.groups.set(anchor, rows);
}

function splice(next, anchor, offset, rows) {
  const held = [...(next.groups.get(anchor) ?? [])];
  held.splice(offset, 0, ...rows);
  next.groups.set(anchor, held);
}

/** How many rows and columns the edits touch; `any` says whether there is anything to publish. */
export function summary({ changes, removed, groups, names, dropped, added }) {
  const inserted = [...groups.values()].reduce((sum, rows) => sum + rows.length, 0);
  const changed = [...changes.keys()].filter((index) => !removed.has(index)).length;
  const renamed = [...names].filter(([key]) => !added.includes(key) && !dropped.has(key));
  const droppedStored = [...dropped].filter((key) => !key.startsWith("+"));
  return {
    inserted, changed, removed: removed.size, renamed, dropped: droppedStored, added: added.map((key) => names.get(key) ?? key),
    any: inserted + changed + removed.size + renamed.length + droppedStored.length > 0,
    rewrites: renamed.length + droppedStored.length > 0,
  };
}

/** A row as it is stored: by the names of its columns, without those that were dropped. */
export function outputRow(row, { names, dropped }) {
  if (!names.size && !dropped.size) return row;
  return Object.fromEntries(Object.entries(row).filter(([key]) => !dropped.has(key))
    .map(([key, value]) => [names.get(key) ?? key, value]));
}
