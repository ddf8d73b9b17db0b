// The stored rows of a dataset version, loaded in windows as they are looked at; nothing else is.
import { onCleanup, signal } from "../lib/dom.js";
import { postProject } from "../lib/data.js";

const PAGE = 100;
const KEPT = 60;
const SCAN = 2000;
const MOST_FOUND = 5000;

/**
 * A window on a table, in its own order or in a sorted one: `row(place)` is {index, values}, with null values while they
 * are loaded; reading it inside an effect follows the loading.
 * @param {{digest: string, count: number, sort: {key: string, descending: boolean}|null}} table
 * @param {{onrows: (rows: any[]) => void, onerror: (error: Error) => void}} on
 */
export function openTable({ digest, count, sort }, on) {
  const pages = new Map();
  const version = signal(0);
  const abort = new AbortController();
  let wanted = new Set();
  let timer = null;
  onCleanup(() => abort.abort());

  const load = (page) => {
    if (pages.has(page)) return pages.get(page).promise;
    const entry = { rows: null, promise: null };
    entry.promise = queryRows(digest, page * PAGE, PAGE, sort, abort.signal).then((rows) => {
      entry.rows = rows.map((row) => ({ index: row.original_index, values: row.val }));
      on.onrows(rows.map((row) => row.val));
      version.value = version.peek() + 1;
    }, (error) => {
      pages.delete(page);
      if (error.name !== "AbortError") on.onerror(error);
    });
    pages.set(page, entry);
    if (pages.size > KEPT) pages.delete(pages.keys().next().value);
    return entry.promise;
  };
  const ask = (page) => {
    wanted.add(page);
    timer ??= setTimeout(() => {
      // Only the last pages asked for: what was scrolled past is not loaded.
      for (const name of [...wanted].slice(-4)) load(name);
      wanted = new Set();
      timer = null;
    }, 40);
  };
  return {
    count,
    row(place) {
      version.value;
      const found = pages.get(Math.floor(place / PAGE))?.rows?.[place % PAGE];
      if (found) return found;
      ask(Math.floor(place / PAGE));
      return { index: sort ? null : place, values: null };
    },
    /** Wait until rows are there. */
    ensure: (places) => Promise.all([...new Set(places.map((place) => Math.floor(place / PAGE)))].map(load)),
  };
}

/** Rows of a table from an offset on. */
export async function queryRows(digest, offset, limit, sort = null, abort = undefined) {
  const order = sort ? { sort_by: [{ field: sort.key, direction: sort.descending ? "desc" : "asc" }] } : {};
  return (await postProject("/table/query", { digest, offset, limit, ...order }, abort)).rows;
}

/** All rows of a table in slices, at most `most` of them. */
export async function* allRows(digest, count, { most = Infinity, slice = SCAN, abort = undefined } = {}) {
  for (let offset = 0; offset < Math.min(count, most); offset += slice) {
    yield await queryRows(digest, offset, Math.min(slice, most - offset), null, abort);
  }
}

/**
 * The rows that fit a test, found by reading on through the table: {rows, scanned, done} as signals.
 * @param {{digest: string, count: number}} table
 * @param {(values: any) => boolean} test
 */
export function scanTable({ digest, count }, test) {
  const state = { rows: signal([]), scanned: signal(0), done: signal(false), error: signal(null) };
  const abort = new AbortController();
  onCleanup(() => abort.abort());
  (async () => {
    for await (const rows of allRows(digest, count, { abort: abort.signal })) {
      const fit = rows.filter((row) => test(row.val)).map((row) => ({ index: row.original_index, values: row.val }));
      if (fit.length) state.rows.value = [...state.rows.peek(), ...fit].slice(0, MOST_FOUND);
      state.scanned.value = state.scanned.peek() + rows.length;
      if (state.rows.peek().length >= MOST_FOUND) break;
    }
    state.done.value = true;
  })().catch((error) => {
    if (error.name !== "AbortError") state.error.value = error;
  });
  return state;
}

/**
 * What a filter of a column means: `=x` is, `!=x` is not, `>5` `<5` compare, `empty` has nothing, else contains.
 * @returns {(value: any) => boolean}
 */
export function cellTest(text) {
  const asked = /^(=|!=|>=|<=|>|<)\s*(.*)$/s.exec(text.trim());
  const shown = (value) => (value == null ? "" : typeof value === "string" ? value : JSON.stringify(value));
  if (text.trim() === "empty") return (value) => shown(value) === "";
  if (!asked) return (value) => shown(value).toLowerCase().includes(text.trim().toLowerCase());
  const [, sign, wanted] = asked;
  const compare = {
    "=": (value) => shown(value) === wanted, "!=": (value) => shown(value) !== wanted,
    ">": (value) => Number(value) > Number(wanted), "<": (value) => Number(value) < Number(wanted),
    ">=": (value) => Number(value) >= Number(wanted), "<=": (value) => Number(value) <= Number(wanted),
  }[sign];
  return (value) => (sign.includes("=") || value != null) && compare(value);
}
