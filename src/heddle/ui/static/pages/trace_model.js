// A trace in the browser: columns as they come from the server, and the tree, rows and times made from them.
// Nothing here recurses, as traces may be thousands of calls deep.

const ERROR = 1;
const RUNNING = 3;

/**
 * The columns of a trace, one entry per call in the order of starts; times are microseconds since the first start.
 * @typedef {{total: number, shown: number, version: string, selected: number, base: number, ops: [string, string][],
 *   models: string[], id: string[], op: number[], start: number[], length: number[], parent: number[],
 *   positions: Map<string, number>, orphans: Map<number, string>, status: Map<number, number>, names: Map<number, string>,
 *   usage: Map<number, {models: number[], input: number, output: number, cost: number|null}>, last: number}} Columns
 */

/** @typedef {{input: number, output: number, cost: number|null}} Used */

/** @type {Used} */
const NOTHING = { input: 0, output: 0, cost: null };

const added = (one, other) => ({
  input: one.input + other.input,
  output: one.output + other.output,
  cost: one.cost === null ? other.cost : one.cost + (other.cost ?? 0),
});

const without = (whole, part) => ({
  input: whole.input - part.input,
  output: whole.output - part.output,
  cost: whole.cost === null ? null : Math.max(0, whole.cost - (part.cost ?? 0)),
});

/** Columns for the first line of the server's answer. */
export function emptyColumns(head) {
  return /** @type {Columns} */ ({
    ...head,
    base: 0,
    last: 0,
    ops: [],
    models: [],
    id: [],
    op: [],
    start: [],
    length: [],
    parent: [],
    positions: new Map(),
    orphans: new Map(),
    status: new Map(),
    names: new Map(),
    usage: new Map(),
  });
}

/** Append a page to the columns. */
export function addPage(columns, page) {
  const first = columns.id.length;
  if (!first) columns.base = page.start[0];
  columns.ops.push(...page.ops);
  for (const model of page.models) columns.models.push(model);
  for (let index = 0; index < page.id.length; index++) {
    columns.last += page.start[index];
    columns.positions.set(page.id[index], first + index);
    columns.id.push(page.id[index]);
    columns.op.push(page.op[index]);
    columns.start.push(columns.last - columns.base);
    columns.length.push(page.length[index]);
    const back = page.parent[index];
    columns.parent.push(back ? first + index - back : -1);
  }
  for (const [index, status] of page.status) columns.status.set(index, status);
  for (const [index, name] of page.name) columns.names.set(index, name);
  for (const [index, parent] of page.orphan) columns.orphans.set(index, parent);
  for (const [index, model, input, output, cost] of page.usage) addUsage(columns.usage, index, model, input, output, cost);
}

function addUsage(usage, index, model, input, output, cost) {
  const known = usage.get(index) ?? { models: [], input: 0, output: 0, cost: null };
  known.models.push(model);
  known.input += input;
  known.output += output;
  if (cost !== null) known.cost = (known.cost ?? 0) + cost;
  usage.set(index, known);
}

/**
 * The tree of the calls that are there: `order` lists them parents first, `place` is the inverse, `size` counts a call
 * with all below it, `depth` starts at 0. Calls whose parent is missing, and one of each cycle, are at the top.
 */
export class Tree {
  /** @param {Columns} columns */
  constructor(columns) {
    const count = columns.id.length;
    this.columns = columns;
    this.count = count;
    this.order = new Int32Array(count);
    this.place = new Int32Array(count).fill(-1);
    this.size = new Int32Array(count).fill(1);
    this.depth = new Int32Array(count);
    this.roots = [];
    this.from = 0;
    this.until = 1;
    this.#walk(this.#links());
    this.#sizes();
    this.#measure();
  }

  #links() {
    const first = new Int32Array(this.count).fill(-1);
    const next = new Int32Array(this.count).fill(-1);
    for (let index = this.count - 1; index >= 0; index--) {
      const parent = this.columns.parent[index];
      if (parent < 0 || parent >= this.count) {
        this.roots.push(index);
        continue;
      }
      next[index] = first[parent];
      first[parent] = index;
    }
    this.roots.reverse();
    return { first, next };
  }

  #walk({ first, next }) {
    let at = 0;
    // In a cycle a call may have been visited already, as its top.
    const unmet = (index) => {
      while (index >= 0 && this.place[index] >= 0) index = next[index];
      return index;
    };
    const visit = (root) => {
      let index = root;
      for (;;) {
        this.place[index] = at;
        this.order[at++] = index;
        let following = unmet(first[index]);
        let depth = this.depth[index] + 1;
        while (following < 0) {
          if (index === root) return;
          following = unmet(next[index]);
          depth = this.depth[index];
          index = this.columns.parent[index];
        }
        this.depth[following] = depth;
        index = following;
      }
    };
    for (const root of this.roots) visit(root);
    for (let index = 0; at < this.count && index < this.count; index++) {
      if (this.place[index] >= 0) continue;
      this.roots.push(index);
      visit(index);
    }
  }

  #sizes() {
    for (let at = this.count - 1; at >= 0; at--) {
      const index = this.order[at];
      if (this.depth[index] > 0) this.size[this.columns.parent[index]] += this.size[index];
    }
  }

  /** Totals, the time that the trace covers, and how many errors stand before each place of the order. */
  #measure() {
    const { status } = this.columns;
    this.#sumUsage();
    this.totals = { ...this.roots.reduce((sum, root) => added(sum, this.used(root)), NOTHING), errors: 0, running: 0 };
    this.errorsBefore = new Int32Array(this.count + 1);
    for (let at = 0; at < this.count; at++) {
      const found = status.get(this.order[at]);
      this.errorsBefore[at + 1] = this.errorsBefore[at] + (found === ERROR ? 1 : 0);
      if (found === RUNNING) this.totals.running++;
    }
    this.totals.errors = this.errorsBefore[this.count];
    [this.from, this.until] = this.#span();
  }

  /** What each call used with all below it. SDKs add the usage of children to their parent's; that is not counted twice. */
  #sumUsage() {
    /** @type {Map<number, Used>} */
    this.usedWithBelow = new Map();
    /** @type {Map<number, Used>} */
    this.usedAlone = new Map();
    const below = new Map();
    for (let at = this.count - 1; at >= 0; at--) {
      const index = this.order[at];
      const [own, beneath] = [this.columns.usage.get(index), below.get(index)];
      if (!own && !beneath) continue;
      const isSum = own && beneath && own.input >= beneath.input && own.output >= beneath.output;
      const used = !beneath || isSum ? own : own ? added(own, beneath) : beneath;
      this.usedWithBelow.set(index, used);
      if (own) this.usedAlone.set(index, isSum ? without(own, beneath) : own);
      const parent = this.columns.parent[index];
      if (this.depth[index] > 0) below.set(parent, below.has(parent) ? added(below.get(parent), used) : used);
    }
  }

  /** Tokens and dollars of a call and all below it. */
  used(index) {
    return this.usedWithBelow.get(index) ?? NOTHING;
  }

  /** The same of a call alone; of one that reports the sum of those below only what is left. */
  usedByItself(index) {
    return this.usedAlone.get(index) ?? NOTHING;
  }

  /** The time that the roots cover; calls outside (clocks differ between machines) widen it, but not beyond measure. */
  #span() {
    const [from, until] = this.#extent(this.roots);
    const [first, last] = this.#extent(this.order);
    const isSane = last - first <= 4 * (until - from) || until <= from;
    return isSane ? [first, Math.max(last, first + 1)] : [from, until];
  }

  #extent(indexes) {
    let [from, until] = [Infinity, -Infinity];
    for (const index of indexes) {
      from = Math.min(from, this.columns.start[index]);
      until = Math.max(until, this.end(index));
    }
    return this.count ? [from, until] : [0, 1];
  }

  /** When a call ended; a running one has not ended before now. */
  end(index) {
    const length = this.columns.length[index];
    if (length >= 0) return this.columns.start[index] + length;
    return Math.max(this.columns.start[index], Date.now() * 1000 - this.columns.base);
  }

  name(index) {
    return this.columns.names.get(index) ?? this.columns.ops[this.columns.op[index]]?.[0] ?? "";
  }

  kind(index) {
    return this.columns.ops[this.columns.op[index]]?.[1] ?? "fn";
  }

  /** The model's answer before a call, among its siblings or those of its ancestors; -1 for none. */
  answerBefore(index) {
    for (let at = index; at >= 0; at = this.depth[at] > 0 ? this.columns.parent[at] : -1)
      for (let before = at - 1; before >= 0 && this.depth[at] > 0; before--)
        if (this.columns.parent[before] === this.columns.parent[at] && this.kind(before) === "llm") return before;
    return -1;
  }

  isError(index) {
    return this.columns.status.get(index) === ERROR;
  }

  isRunning(index) {
    return this.columns.status.get(index) === RUNNING;
  }

  /** Errors below a call, itself not counted. */
  errorsBelow(index) {
    const at = this.place[index];
    return this.errorsBefore[at + this.size[index]] - this.errorsBefore[at + 1];
  }

  /** The calls above one, the nearest first. */
  above(index) {
    const found = [];
    for (let at = index; this.depth[at] > 0;) found.push((at = this.columns.parent[at]));
    return found;
  }

  /** The rows of the tree: calls in order without those below closed ones (a set of ids). */
  rows(closed) {
    const rows = [];
    for (let at = 0; at < this.count;) {
      const index = this.order[at];
      rows.push(index);
      at += closed.size && closed.has(this.columns.id[index]) ? this.size[index] : 1;
    }
    return rows;
  }

  /** Those rows that hold what is looked for, with the calls above them. */
  filtered(matches) {
    const kept = new Uint8Array(this.count);
    for (let index = 0; index < this.count; index++) {
      if (!matches(index)) continue;
      kept[index] = 1;
      for (let at = index; this.depth[at] > 0;) {
        at = this.columns.parent[at];
        if (kept[at]) break;
        kept[at] = 2;
      }
    }
    return { rows: Array.from(this.order).filter((index) => kept[index]), kept };
  }

  /** What tells whether a call holds all of the words; words of ops are looked at once per op. */
  matcher(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const { columns } = this;
    const models = columns.models.map((model) => model.toLowerCase());
    const ops = columns.ops.map(([name, kind]) => `${name} ${kind}`.toLowerCase());
    return (index) => {
      const said = [
        ops[columns.op[index]],
        columns.names.get(index)?.toLowerCase() ?? "",
        columns.id[index],
        ...(columns.usage.get(index)?.models ?? []).map((model) => models[model]),
        this.isError(index) ? "error" : this.isRunning(index) ? "running" : "",
      ];
      return words.every((word) => said.some((part) => part.includes(word)));
    };
  }
}
