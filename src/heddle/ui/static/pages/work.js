// Working through an annotation queue: one call at the left, the fields at the right, everything by keyboard.
import { computed, effect, h, onCleanup, signal, untrack } from "../lib/dom.js";
import { resource } from "../lib/data.js";
import { toast } from "../lib/dialog.js";
import { int, plural } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { button, failure, keys, loaded, page, skeleton, title } from "../lib/parts.js";
import { config, link, may, path, query, setQuery } from "../lib/router.js";
import { progressBar } from "./queues.js";
import { chosen, fieldList } from "./work_fields.js";
import { callCache, feedbackRows, loadQueue, progress, readItem, saver, waitingItems } from "./work_items.js";
import { callPanel } from "./work_call.js";

/** The work page; `?item=` is the open item, by default the first waiting one. */
export default function Work({ queue: id }) {
  title("Annotate");
  const state = resource(() => id, loadQueue);
  const tools = signal(null);
  const head = {
    crumbs: [["Annotation", link("/queues")], [h("span", { dir: "auto" }, () => state.data.value?.queue.name ?? "Queue"),
      link(path`/queues/${id}`)]],
    title: "Annotate", actions: () => tools.value,
  };
  return page(head, h("div.workpage", loaded(state, (data) => untrack(() => workbench(id, data, tools)))), { fixed: true });
}

function workbench(id, { queue, fields, gone, total, done }, tools) {
  const work = makeWork(id, fields, done);
  tools.value = h("span.worktools", () => saving(work), timer(work.item), progressBarOf(work, total));
  bind(work, fields);
  return [
    () => work.save.failed.value.length > 0
      && h("div.workfailed",
      failure(Object.assign(new Error(`${work.save.failed.value.length} not saved: ${work.save.failed.value[0].error.message}`),
      { requestId: work.save.failed.value[0].error.requestId }), work.save.retry)),
    () => {
      if (work.error.value) return failure(work.error.value, work.open);
      if (work.phase.value === "loading") return skeleton(10);
      if (work.phase.value === "done") return finished(id, work, total);
      return h("div.split.worksplit", callPanel(work.item.value, work.data), panel(queue, fields, gone, work));
    },
  ];
}

function progressBarOf(work, total) {
  return h("span.progresscell",
    () => [progressBar(Math.min(total, work.done.value), total),
    h("span.dim", `${int(Math.min(total, work.done.value))} of ${int(total)}`)]);
}

/** The state of one's work: the open item, its values, what was done before, and the steps. */
function makeWork(id, fields, done) {
  const [waiting, cache, save] = [waitingItems(id), callCache(id), Object.assign(saver(id), { first: done })];
  const work = {
    id, save, item: signal(null), data: signal(null), values: signal({}), note: signal(""), active: signal(0), done: signal(done),
    phase: signal("loading"), error: signal(null), past: [], seen: new Set(), touched: false, open: () => {}, set, next, finish,
      back, undo,
  };
  let turn = 0;

  async function show(item, draft = null) {
    const mine = ++turn;
    Object.assign(work, { touched: false });
    work.item.value = item;
    work.data.value = null;
    work.values.value = draft?.values ?? {};
    work.note.value = draft?.note ?? "";
    work.active.value = 0;
    work.phase.value = item ? "open" : "done";
    setQuery({ item: item?.id ?? null });
    if (!item) return;
    const found = await cache.get(item);
    if (mine !== turn) return;
    work.data.value = found;
    if (!draft && !work.touched) showLabels(found.labels, fields, work);
    const following = waiting.ahead(new Set([...work.seen, item.id]));
    if (following) cache.get(following).catch(() => {});
  }
  /** Begin with an item, so that others are given the next one. */
  function take(item) {
    if (item?.annotation_state === "unstarted" && may("annotate")) progress(id, item, "in_progress").catch(() => {});
    return show(item);
  }
  async function guard(action) {
    try {
      work.error.value = null;
      await action();
    } catch (error) {
      work.error.value = error;
    }
  }
  work.open = () => guard(async () => {
    const asked = query("item");
    const item = asked ? await readItem(id, asked) : await waiting.next(work.seen);
    if (asked && !item) toast("This item no longer exists");
    await take(item ?? (await waiting.next(work.seen)));
  });
  function set(name, value) {
    work.touched = true;
    work.values.value = { ...work.values.peek(), [name]: value };
  }
  function next() {
    return guard(async () => take(await waiting.next(work.seen)));
  }
  function finish(state) {
    const item = work.item.peek();
    if (!item || work.phase.peek() !== "open") return;
    const [values, note] = [work.values.peek(), work.note.peek()];
    const rows = state === "completed" ? feedbackRows(id, item, fields, values, note) : [];
    if (state === "completed" && !rows.length) {
      toast("No field is filled in; press s to skip");
      return;
    }
    const old = state === "completed" ? (work.data.peek()?.own ?? []) : [];
    const isNew = !["completed", "skipped"].includes(item.annotation_state);
    save.push({ item, state: isNew ? state : "", rows, old });
    work.past.push({ item: { ...item, annotation_state: state }, values, note, own: rows.map((row) => row.id), isNew, state });
    work.seen.add(item.id);
    cache.forget(item);
    if (isNew) work.done.value = work.done.peek() + 1;
    next();
  }
  function back() {
    const at = work.past.findIndex((step) => step.item.id === work.item.peek()?.id);
    const step = work.past[(at < 0 ? work.past.length : at) - 1];
    if (!step) toast("No item before this one");
    else reopen(step);
  }
  function undo() {
    const step = work.past.pop();
    if (!step) return void toast("Nothing to undo");
    reopen(step);
    toast(step.state === "skipped" ? "The item you skipped is open again" : "What you saved is open again; saving replaces it");
    return undefined;
  }
  function reopen(step) {
    guard(async () => {
      await show(step.item, step);
      if (work.data.peek()) work.data.value = { ...work.data.peek(), own: step.own };
    });
  }
  work.open();
  return work;
}

/** Show what this person labelled before on an item that is opened again; saving replaces only this person's labels. */
function showLabels(all, fields, work) {
  const labels = all.filter((row) => row.wb_user_id === config.user);
  const values = {};
  for (const row of labels) {
    const field = fields.find(({ name }) => row.feedback_type === `wandb.annotation.${name}`);
    if (field) values[field.name] = row.payload?.value;
  }
  const notes = labels.filter((row) => row.feedback_type === "wandb.note.1");
  const asked = new Set(fields.map(({ name }) => `wandb.annotation.${name}`));
  const own = labels.filter((row) => asked.has(row.feedback_type) || row === notes[notes.length - 1]);
  work.values.value = values;
  work.note.value = notes[notes.length - 1]?.payload?.note ?? "";
  work.data.value = { ...work.data.peek(), own: own.map(({ id }) => id) };
}

function bind(work, fields) {
  const digit = (place) => () => {
    const field = fields[work.active.peek()];
    if (field && place < field.options.length) choose(work, fields, field, field.options[place]);
  };
  keys({
    ...Object.fromEntries(
      Array.from({ length: 9 }, (_, place) => [String(place + 1), [digit(place), place ? "choose" : "choose (1 to 9)"]])),
    ArrowDown: [() => step(work, fields, 1), "next field"],
    ArrowUp: [() => step(work, fields, -1), "previous field"],
    Enter: [() => work.finish("completed"), "save and next"],
    s: [() => work.finish("skipped"), "skip"],
    b: [() => work.back(), "back"],
    n: [() => focusOn("note"), "note"],
    u: [() => work.undo(), "undo"],
  });
  // Choosing by pointer leaves the focus on a button, where Enter would choose again.
  const enter = (event) => {
    if (event.key !== "Enter" || !event.target.closest?.(".workoptions") || document.querySelector("dialog[open]")) return;
    event.preventDefault();
    work.finish("completed");
  };
  addEventListener("keydown", enter, true);
  onCleanup(() => removeEventListener("keydown", enter, true));
  const warn = (event) => (work.save.waiting.peek().length || work.save.failed.peek().length) && event.preventDefault();
  addEventListener("beforeunload", warn);
  onCleanup(() => removeEventListener("beforeunload", warn));
}

/** Choose an option (or take it back); where one is all there is to choose, the next field becomes the active one. */
function choose(work, fields, field, option) {
  const value = chosen(field, work.values.peek()[field.name], option);
  work.set(field.name, value);
  work.active.value = fields.indexOf(field);
  if (field.kind !== "choices" && value !== undefined) step(work, fields, 1);
}

const focusOn = (name) => /** @type {HTMLElement} */ (document.querySelector(`[data-field="${CSS.escape(name)}"]`))?.focus();

/** Make another field the active one; one that is typed into gets the focus. */
function step(work, fields, by) {
  const at = Math.max(0, Math.min(fields.length - 1, work.active.peek() + by));
  const isTyped = (index) => !fields[index]?.options.length;
  const stays = by > 0 && isTyped(work.active.peek()) && !document.activeElement?.matches("[data-field]");
  work.active.value = stays ? work.active.peek() : at;
  const field = fields[work.active.peek()];
  /** @type {HTMLElement} */ (document.activeElement)?.blur();
  if (field && isTyped(work.active.peek())) focusOn(field.name);
}

function panel(queue, fields, gone, work) {
  const onkey = (event) => {
    const { target, key } = event;
    const atEdge = target.selectionStart === null
      || (key === "ArrowUp" ? target.selectionStart === 0 : target.selectionEnd === target.value.length);
    if (key === "Escape") target.blur();
    else if (key === "Enter" && !event.shiftKey && !event.isComposing) { target.blur(); work.finish("completed"); }
    else if ((key === "ArrowUp" || key === "ArrowDown") && atEdge && target.dataset.field !== "note") step(work, fields,
      key === "ArrowUp" ? -1 : 1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return h("section.workpanel", { "aria-label": "Fields", tabindex: 0 },
    queue.description && h("details.workguide", { open: true }, h("summary", "Guideline"),
      h("p", { dir: "auto" }, queue.description)),
    fieldList({ fields, values: work.values, active: work.active, set: work.set, onkey,
      choose: (field, option) => choose(work, fields, field, option) }),
    gone.length > 0 && h("p.dim", { dir: "auto" }, `Fields no longer available: ${gone.map(({ label }) => label).join(", ")}`),
    h("label.field.worknote", h("span", "Note ", h("kbd", "n")), h("textarea", {
      rows: 2, dir: "auto", maxlength: 1024, "data-field": "note", "aria-label": "Note", value: () => work.note.value,
        onkeydown: onkey,
      oninput: (event) => { work.touched = true; work.note.value = event.target.value; },
    })),
    h("div.workactions", button(["Save & next ", h("kbd", "Enter")], () => work.finish("completed"), { kind: "primary", needs: "annotate" }),
      button(["Skip ", h("kbd", "s")], () => work.finish("skipped"), { needs: "annotate" }), button(["Back ", h("kbd", "b")], () => work.back()),
        button(["Undo ", h("kbd", "u")], () => work.undo())),
    h("p.workhints.keyhint", h("kbd", "1"), "–", h("kbd", "9"), " choose, then the next field ", h("kbd", "↑"), h("kbd", "↓"), " field ", h("kbd", "Esc"),
      " leave a text ", h("kbd", "?"), " all keys"));
}

function finished(id, work, total) {
  const count = work.past.length;
  if (!total) return empty({ title: "The queue is empty", text: "Add calls on the queue's page; they appear here one by one.",
    action: h("a.button.primary", { href: link(path`/queues/${id}`) }, "Add calls") });
  return h("div.empty", { role: "status" }, h("h2", "All done"),
    h("p", count ? `You worked on ${plural(count, "item")}. This queue has no items left.`
    : "This queue has no items left."),
    h("div.actions", count > 0 && button(["Undo the last ", h("kbd", "u")], () => work.undo()),
      h("a.button", { href: link(path`/queues/${id}`, { tab: "people" }) }, "See the labels"),
      h("a.button.primary", { href: link("/queues") }, "All queues")));
}

function saving({ save, done }) {
  const isBusy = save.waiting.value.length > 0;
  return h("span.faint", { role: "status" }, isBusy ? "Saving…" : save.failed.value.length ? "Not saved"
    : done.value !== save.first ? "Saved" : "");
}

/** How long the open item has been open. */
function timer(item) {
  const seconds = signal(0);
  const id = computed(() => item.value?.id);
  effect(() => { id.value; seconds.value = 0; });
  const tick = setInterval(() => { seconds.value = seconds.peek() + 1; }, 1000);
  onCleanup(() => clearInterval(tick));
  return h("span.worktimer", { title: "Time on this item" },
    () => `${Math.floor(seconds.value / 60)}:${String(seconds.value % 60).padStart(2, "0")}`);
}
