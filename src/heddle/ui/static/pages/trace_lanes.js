// Where the calls of a trace stand in a flame.
/** @typedef {import("./trace_model.js").Tree} Tree */

/**
 * Rows of a flame: each call stands below its parent, in the first row that is free when it starts, so that calls
 * that run at the same time do not hide one another. Returns the row of every call and how many rows there are.
 * @param {Tree} tree
 */
export function lanes(tree) {
  const rows = new Int32Array(tree.count);
  const busyUntil = [];
  const byStart = Array.from(tree.order).sort(
    (one, other) => tree.columns.start[one] - tree.columns.start[other] || tree.depth[one] - tree.depth[other],
  );
  for (const index of byStart) {
    const from = tree.columns.start[index];
    let row = tree.depth[index] > 0 ? rows[tree.columns.parent[index]] + 1 : 0;
    for (let tries = 0; tries < 200 && (busyUntil[row] ?? -1) > from; tries++) row++;
    rows[index] = row;
    busyUntil[row] = Math.max(busyUntil[row] ?? 0, tree.end(index));
  }
  return { rows, count: busyUntil.length };
}
