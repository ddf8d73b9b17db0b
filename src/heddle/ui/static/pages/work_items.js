// What the work page reads and writes: items that wait, their calls, labels, and saving that tries again.
import { signal } from "../lib/dom.js";
import { get, lines, post, postProject } from "../lib/data.js";
import { config, path, projectId } from "../lib/router.js";
import { GONE, loadFields } from "./queue_fields.js";

const AHEAD = 50;
const TRIES = 4;

/** A queue with its fields, those of them that are gone, and counts. */
export async function loadQueue(id, abort) {
  const [{ queue }, { stats: [stats] }, user] = await Promise.all([
    get(`${path`/annotation_queues/${id}`}?${new URLSearchParams({ project_id: projectId() })}`, abort),
    postProject("/annotation_queues/stats", { queue_ids: [id] }, abort), null,
  ]);
  const all = await loadFields(queue.scorer_refs, abort);
  const isGone = ({ kind }) => kind === GONE;
  return { queue, user, total: stats.total_items, done: stats.completed_items,
    fields: all.filter((field) => !isGone(field)), gone: all.filter(isGone) };
}

/** One item by its id, or null. */
export async function readItem(queue, id) {
  const { items } = await postProject(path`/annotation_queues/${queue}/items/query`, { filter: { id }, limit: 1 });
  return items[0] ?? null;
}

/**
 * The items that wait: `next(skip)` is the first that is not in `skip`, or null, and rather one that nobody else is at;
 * `ahead(skip)` is the one that probably follows.
 * @param {string} queue
 */
export function waitingItems(queue) {
  let batch = [];
  const load = async (states, count, skip) => (await postProject(path`/annotation_queues/${queue}/items/query`,
    { filter: { annotation_states: states }, limit: count + skip.size })).items.filter((item) => !skip.has(item.id));
  const free = (item) => item.annotation_state === "unstarted" || item.annotator_user_id === config.user;
  return {
    // Asked anew for each item: others work on the queue as well.
    async next(skip) {
      batch = await load(["unstarted", "in_progress"], AHEAD, skip);
      return batch.find(free) ?? (await load(["unstarted"], 1, skip))[0] ?? batch[0] ?? null;
    },
    ahead: (skip) => batch.find((item) => !skip.has(item.id) && free(item)) ?? null,
  };
}

/** The call of an item with the labels that it has from this queue; kept, so that the next one is there at once. */
export function callCache(queue) {
  const kept = new Map();
  const load = async (item) => {
    const ref = callRef(item);
    const condition = { $expr: { $and: [{ $eq: [{ $getField: "queue_id" }, { $literal: queue }] },
      { $eq: [{ $getField: "weave_ref" }, { $literal: ref }] }] } };
    const [calls, { result }] = await Promise.all([
      lines("/calls/stream_query", { filter: { call_ids: [item.call_id] }, include_conversation: true, limit: 1 }),
      postProject("/feedback/query", { query: condition, limit: 500 }),
    ]);
    return { call: calls[0] ?? null, labels: result };
  };
  return {
    get(item) {
      if (!kept.has(item.id)) kept.set(item.id, load(item).catch((error) => { kept.delete(item.id); throw error; }));
      if (kept.size > 20) kept.delete(kept.keys().next().value);
      return kept.get(item.id);
    },
    forget: (item) => kept.delete(item.id),
  };
}

export const callRef = (item) => `weave:///${projectId()}/call/${item.call_id}`;

/** An id as the server makes them; known before it is sent, so that a second try stores nothing twice. */
export function newId() {
  const hex = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-7${hex.slice(13, 16)}-8${hex.slice(17, 20)}-${hex.slice(20)}`;
}

/** Labels and a note as rows of feedback. */
export function feedbackRows(queue, item, fields, values, note) {
  const head = { project_id: projectId(), weave_ref: callRef(item), queue_id: queue };
  const rows = fields.filter(({ name }) => values[name] !== undefined).map(({ name, ref }) => (
    { id: newId(), ...head, feedback_type: `wandb.annotation.${name}`, annotation_ref: ref, payload: { value: values[name] } }));
  if (note.trim()) rows.push(
    /** @type {any} */ ({ id: newId(), ...head, feedback_type: "wandb.note.1", payload: { note: note.trim() } }));
  return rows;
}

/**
 * Saves in the background, one after the other: `push(job)`; jobs are {item, state, rows, old}. `failed` holds those
 * that were tried in vain, for `retry()`.
 * @param {string} queue
 */
export function saver(queue) {
  const [waiting, failed] = [signal(/** @type {any[]} */ ([])), signal(/** @type {any[]} */ ([]))];
  let isRunning = false;
  const run = async () => {
    if (isRunning) return;
    isRunning = true;
    while (waiting.peek().length) {
      const job = waiting.peek()[0];
      try {
        await tried(() => save(queue, job));
      } catch (error) {
        failed.value = [...failed.peek(), { ...job, error }];
      }
      waiting.value = waiting.peek().filter((other) => other !== job);
    }
    isRunning = false;
  };
  return {
    waiting, failed,
    push(job) { waiting.value = [...waiting.peek(), job]; run(); },
    retry() { waiting.value = [...waiting.peek(), ...failed.peek()]; failed.value = []; run(); },
  };
}

async function tried(action) {
  for (let turn = 1; ; turn++) {
    try {
      return await action();
    } catch (error) {
      // What the server refuses, it refuses again; what did not reach it may later.
      const isLasting = error.status >= 400 && error.status < 500 && error.status !== 429;
      if (isLasting || turn === TRIES) throw error;
      await new Promise((resolve) => { setTimeout(resolve, 500 * 2 ** turn); });
    }
  }
}

async function save(queue, { item, state, rows, old }) {
  if (rows.length) await post("/feedback/batch/create", { batch: rows });
  if (old.length) await postProject("/feedback/purge",
    { query: { $expr: { $or: old.map((id) => ({ $eq: [{ $getField: "id" }, { $literal: id }] })) } } });
  if (state && state !== item.annotation_state) await progress(queue, item, state);
}

/** Say how far one is with an item; the steps that are not possible any more count as done. */
export async function progress(queue, item, state) {
  try {
    await postProject(path`/annotation_queues/${queue}/items/${item.id}/progress`, { annotation_state: state });
  } catch (error) {
    if (error.status !== 400 || !/transition/.test(error.message)) throw error;
  }
}
