// The calls of one trace: read line by line as they come, read again now and then while some of them run.
import { effect, onCleanup, signal } from "../lib/dom.js";
import { parseSent, partsOf, request } from "../lib/data.js";
import { projectId, query } from "../lib/router.js";
import { Tree, addPage, emptyColumns } from "./trace_model.js";

const REBUILD_EVERY = 400;
const POLL_EVERY = 3000;
const POLL_BIG_EVERY = 15_000;
const BIG = 3000;

/**
 * The tree of a trace, which grows while it is read; `error` where it cannot be, `done` once all of it is there.
 * @param {string} traceId
 */
export function traceData(traceId) {
  const state = {
    tree: signal(/** @type {Tree|null} */ (null)),
    error: signal(/** @type {any} */ (null)),
    done: signal(false),
    reload: () => load(false),
  };
  let current = new AbortController();
  let timer = 0;
  const load = async (isPoll) => {
    current.abort();
    const mine = (current = new AbortController());
    try {
      const known = isPoll ? state.tree.peek()?.columns.version : "";
      const tree = await read(
        traceId,
        known,
        mine.signal,
        state.tree.peek()
          ? () => {}
          : (part) => {
              state.tree.value = part;
            },
      );
      // Without news the bars of running calls grow all the same.
      const old = state.tree.peek();
      if (tree ?? old) state.tree.value = tree ?? new Tree(old.columns);
      state.error.value = null;
      state.done.value = true;
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!isPoll) state.error.value = error;
    }
    later();
  };
  const later = () => {
    clearTimeout(timer);
    const tree = state.tree.peek();
    if (!tree?.totals.running) return;
    timer = setTimeout(() => (document.hidden ? later() : load(true)), tree.count > BIG ? POLL_BIG_EVERY : POLL_EVERY);
  };
  effect(() => {
    load(false);
  });
  addEventListener("heddle:retry", state.reload);
  onCleanup(() => {
    removeEventListener("heddle:retry", state.reload);
    current.abort();
    clearTimeout(timer);
  });
  return state;
}

/** The whole tree, or null when it is the known one still; `onpart` gets what is there so far. */
async function read(traceId, known, abort, onpart) {
  const [entity, project] = projectId().split("/").map(encodeURIComponent);
  const search = new URLSearchParams({ ...(known ? { known } : {}), ...(query("call") ? { call: query("call") } : {}) });
  const answer = await request(
    "GET",
    `/_ui/api/trace/${entity}/${project}/${encodeURIComponent(traceId)}?${search}`,
    undefined,
    abort,
  );
  let columns = null;
  let built = 0;
  for await (const line of jsonLines(answer)) {
    if (line.same) return null;
    if (!columns) {
      columns = emptyColumns(line);
      continue;
    }
    addPage(columns, line);
    if (columns.id.length < columns.shown && performance.now() - built > REBUILD_EVERY) {
      onpart(new Tree(columns));
      built = performance.now();
    }
  }
  return new Tree(columns);
}

async function* jsonLines(answer) {
  let parts = [];
  for await (const value of partsOf(answer)) {
    const texts = value.split("\n");
    for (const text of texts.slice(0, -1)) {
      parts.push(text);
      yield parseSent(parts.join(""));
      parts = [];
    }
    parts.push(texts[texts.length - 1]);
  }
  if (parts.join("")) yield parseSent(parts.join(""));
}
