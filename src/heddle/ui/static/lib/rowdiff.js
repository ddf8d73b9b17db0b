// What differs between two lists of rows: rows {digest, val} of two versions of a dataset.

/**
 * @typedef {{digest: string, val: any, original_index: number}} Row
 * @typedef {{kind: "added"|"removed"|"changed", index: number, before: any, after: any, columns: string[]}} Change
 */

/**
 * The rows that were added, removed or changed, in the order of the newer list. Rows are the same by digest; of the
 * rest, those with the same id (or, where there is none, the same place) are one row that changed.
 * @param {Row[]} before
 * @param {Row[]} after
 * @returns {{changes: Change[], same: number, key: string|null}}
 */
export function diffRows(before, after) {
  const left = new Map();
  for (const row of before) left.set(row.digest, [...(left.get(row.digest) ?? []), row]);
  const added = after.filter((row) => !left.get(row.digest)?.shift());
  const removed = [...left.values()].flat();
  const key = idColumn(before, after);
  const name = (row) => (key ? JSON.stringify(row.val?.[key]) : row.original_index);
  const waiting = new Map(removed.map((row) => [name(row), row]));
  const changes = added.map((row) => {
    const old = waiting.get(name(row));
    if (!old || (!key && !isAkin(old.val, row.val))) return change("added", row.original_index, undefined, row.val);
    waiting.delete(name(row));
    return change("changed", row.original_index, old.val, row.val);
  });
  changes.push(...[...waiting.values()].map((row) => change("removed", row.original_index, row.val, undefined)));
  changes.sort((one, other) => one.index - other.index);
  return { changes, same: after.length - added.length, key };
}

/** True for rows at one place that share at least one field's value, so that they may be one row. */
function isAkin(before, after) {
  const names = Object.keys(before ?? {});
  return names.length < 2 || names.some((name) => after?.[name] != null && same(before[name], after[name]));
}

function change(kind, index, before, after) {
  return { kind, index, before, after, columns: kind === "changed" ? changedColumns(before, after) : [] };
}

/** The names of the fields in which two rows differ. */
export function changedColumns(before, after) {
  const names = new Set([...Object.keys(before ?? {}), ...Object.keys(after ?? {})]);
  return [...names].filter((name) => !same(before?.[name], after?.[name]));
}

/** True for values that are the same as JSON. */
export const same = (one, other) => Object.is(one, other) || JSON.stringify(one) === JSON.stringify(other);

/** A column that names rows: `id` or a name that ends in it, with a unique value in each row of both lists. */
function idColumn(before, after) {
  const names = Object.keys(before[0]?.val ?? {}).filter((name) => /^(id|key|uuid|.*_id)$/i.test(name));
  return names.find((name) => isUnique(before, name) && isUnique(after, name)) ?? null;
}

function isUnique(rows, name) {
  const seen = new Set();
  for (const row of rows) {
    const value = row.val?.[name];
    if (value == null || seen.has(value)) return false;
    seen.add(value);
  }
  return rows.length > 0;
}
