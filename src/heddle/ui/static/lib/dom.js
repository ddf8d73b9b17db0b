// Reactive DOM: signals, effects that belong to the page that made them, an element builder, keyed lists.
// Components run once and return real nodes; a function given as an attribute or a child is a live binding.

/**
 * @template T
 * @typedef {{value: T, peek: () => T}} Signal
 */

let owner = null;
let running = null;
let queue = null;

/**
 * A value that notifies the effects that read it when it changes.
 * @template T
 * @param {T} value
 * @returns {Signal<T>}
 */
export function signal(value) {
  const readers = new Set();
  return {
    get value() {
      if (running) {
        readers.add(running);
        running.sources.add(readers);
      }
      return value;
    },
    set value(next) {
      if (Object.is(next, value)) return;
      value = next;
      for (const reader of [...readers]) schedule(reader);
    },
    peek: () => value,
  };
}

function schedule(node) {
  if (!queue) {
    queue = new Set();
    queueMicrotask(flush);
  }
  queue.add(node);
}

/** Run the pending effects now; effects that set signals run again, up to 100 rounds. One that fails stops no other. */
export function flush() {
  for (let round = 0; queue?.size && round < 100; round++) {
    const batch = queue;
    queue = new Set();
    for (const node of batch) {
      try {
        if (!node.dead) run(node);
      } catch (error) {
        reportError(error);
      }
    }
  }
  queue = null;
}

function makeNode(action) {
  const node = { action, sources: new Set(), children: new Set(), cleanups: [], parent: owner, dead: false };
  owner?.children.add(node);
  return node;
}

function clean(node) {
  for (const readers of node.sources) readers.delete(node);
  node.sources.clear();
  for (const child of [...node.children]) dispose(child);
  node.children.clear();
  for (const cleanup of node.cleanups.splice(0)) cleanup();
}

function dispose(node) {
  node.dead = true;
  clean(node);
  node.parent?.children.delete(node);
}

function run(node) {
  clean(node);
  const before = [owner, running];
  owner = running = node;
  try {
    node.action();
  } finally {
    [owner, running] = before;
  }
}

/**
 * Run an action now and whenever a signal that it read changes; returns what ends it.
 * @param {() => void} action
 */
export function effect(action) {
  const node = makeNode(action);
  run(node);
  return () => dispose(node);
}

/**
 * Run a function with a separate owner, reading signals without following them.
 * @template T
 * @param {() => T} action
 * @param {boolean} [detached] it outlives the effect that is running now
 * @returns {[T, () => void]} its result, and what disposes of all that it made
 */
export function scope(action, detached = false) {
  const before = [owner, running];
  if (detached) owner = null;
  const node = makeNode(action);
  owner = node;
  running = null;
  try {
    return [action(), () => dispose(node)];
  } finally {
    [owner, running] = before;
  }
}

/** Have something done when the page or effect that runs now goes away. */
export function onCleanup(action) {
  owner?.cleanups.push(action);
}

/**
 * A signal that follows a function of other signals.
 * @template T
 * @param {() => T} action
 * @returns {Signal<T>}
 */
export function computed(action) {
  const result = signal(/** @type {T} */ (undefined));
  effect(() => {
    result.value = action();
  });
  return result;
}

/** Read signals without following them. */
export function untrack(action) {
  const before = running;
  running = null;
  try {
    return action();
  } finally {
    running = before;
  }
}

const SVG = new Set(
  "svg path g rect line circle text defs linearGradient stop clipPath polyline polygon title use".split(" "),
);
const PROPERTIES = new Set(["value", "checked", "indeterminate", "hidden", "disabled", "open", "readOnly"]);

/**
 * Build an element: `h("div.card", {onclick, class: () => …}, children…)`. Text is always text, never markup.
 * `ref` gets the element; `on…` are listeners; functions among attributes and children are live.
 * @param {string} spec tag and classes
 * @param {...any} rest attributes and children
 * @returns {any}
 */
export function h(spec, ...rest) {
  const [tag, ...classes] = spec.split(".");
  const element = SVG.has(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  const first = rest[0];
  const isProps = first && typeof first === "object" && !first.nodeType && !Array.isArray(first);
  for (const [name, value] of Object.entries(isProps ? first : {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), tag === "form" || tag === "button" ? oneAtATime(value, element) : value);
    else if (name === "ref") value(element);
    else if (typeof value === "function") effect(() => assign(element, name, value(), classes));
    else assign(element, name, value, classes);
  }
  append(element, isProps ? rest.slice(1) : rest);
  return element;
}

/** A listener that ignores events while the promise of an earlier one is pending, which shows: a second click makes no second thing. */
function oneAtATime(listener, element) {
  let isPending = false;
  return (event) => {
    if (isPending) {
      event.preventDefault();
      return;
    }
    const result = listener(event);
    if (!(result instanceof Promise)) return;
    isPending = true;
    element.setAttribute("aria-busy", "true");
    result.finally(() => {
      isPending = false;
      element.removeAttribute("aria-busy");
    });
  };
}

function assign(element, name, value, classes) {
  if (name === "class") element.setAttribute("class", [...classes, value || ""].join(" ").trim());
  else if (name === "style") for (const key in value) element.style.setProperty(key, value[key]);
  else if (PROPERTIES.has(name) && name in element) element[name] = value ?? (name === "value" ? "" : false);
  else if (value === false || value == null) element.removeAttribute(name);
  else element.setAttribute(name, value === true ? "" : value);
}

/** Append children (nodes, texts, lists, live functions; null and booleans are left out). A live one that fails says so. */
export function append(parent, children) {
  for (const child of [children].flat(Infinity)) {
    if (child == null || child === false || child === true) continue;
    if (typeof child === "function") slot(parent, child);
    else parent.append(child);
  }
}

function slot(parent, make) {
  // Everything between the two markers belongs to the slot, including what nested slots have added.
  const start = document.createComment("");
  const end = document.createComment("");
  parent.append(start, end);
  effect(() => {
    const fragment = document.createDocumentFragment();
    try {
      const made = make();
      const only = start.nextSibling;
      // What stays in its place keeps the focus and how far it is scrolled.
      if (made instanceof Node && made === only && only.nextSibling === end) return;
      if ((typeof made === "string" || typeof made === "number") && only instanceof Text && only.nextSibling === end) {
        only.data = String(made);
        return;
      }
      append(fragment, [made]);
    } catch (error) {
      reportError(error);
      fragment.replaceChildren(h("span.problem", { role: "alert" }, `Cannot be shown: ${error.message}`));
    }
    const focused = document.activeElement;
    const before = start.parentNode?.contains(focused) && isBetween(start, focused, end) ? controls(start, end) : [];
    const names = before.map(nameOf);
    const selectAgain = keepSelected(start, end);
    while (start.nextSibling && start.nextSibling !== end) start.nextSibling.remove();
    end.before(fragment);
    selectAgain?.();
    if (before.includes(focused)) successor(names, before.indexOf(focused), controls(start, end))?.focus({ preventScroll: true });
  });
}

/** What selects the text again that begins or ends between two markers, once that is drawn again; null without any. */
function keepSelected(start, end) {
  const selection = getSelection();
  if (selection.isCollapsed) return null;
  const edges = /** @type {[Node, number][]} */ ([[selection.anchorNode, selection.anchorOffset], [selection.focusNode, selection.focusOffset]]);
  const places = edges.map(([node, offset]) => (isBetween(start, node, end) ? lengthTo(start, node, offset) : null));
  return places.every((place) => place === null) ? null : () => {
    const [from, to] = places.map((place, index) => (place === null ? edges[index] : textAt(start, place, end)));
    if (from && to) selection.setBaseAndExtent(...from, ...to);
  };
}

function lengthTo(start, node, offset) {
  const range = new Range();
  range.setStartAfter(start);
  range.setEnd(node, offset);
  return range.toString().length;
}

function textAt(start, place, end) {
  const texts = document.createTreeWalker(start.parentNode, NodeFilter.SHOW_TEXT);
  texts.currentNode = start;
  for (let text; (text = /** @type {Text} */ (texts.nextNode())) && isBetween(start, text, end); place -= text.length)
    if (place <= text.length) return /** @type {[Node, number]} */ ([text, place]);
  return null;
}

/** What can have the focus between two markers. */
function controls(start, end) {
  const all = [...start.parentNode.querySelectorAll("a[href],button,input,select,textarea,[tabindex]")];
  return all.filter((one) => isBetween(start, one, end));
}

const isBetween = (start, node, end) => Boolean(start.compareDocumentPosition(node) & 4 && end.compareDocumentPosition(node) & 2);

const nameOf = (element) => element.tagName + (element.getAttribute("aria-label") ?? element.textContent);

/** What takes the place of a control that is drawn again: the one of its name, or the only one that has another name now. */
function successor(names, place, drawn) {
  const isSame = (one, index) => nameOf(one) === names[index];
  const isLike = drawn.length === names.length && drawn.every((one, index) => index === place || isSame(one, index));
  if (isLike) return drawn[place];
  const called = drawn.filter((one) => nameOf(one) === names[place]);
  return called.length === 1 ? called[0] : null;
}

/**
 * A keyed list: an element is made once per key and moved, never rebuilt; it gets a signal of its item.
 * @template T
 * @param {Element} parent an element that holds nothing else
 * @param {() => T[]} list
 * @param {(item: T) => any} key
 * @param {(item: Signal<T>, first: T) => Element} make
 */
export function each(parent, list, key, make) {
  let live = new Map();
  effect(() => {
    const next = new Map();
    let at = parent.firstChild;
    for (const item of list()) {
      const name = key(item);
      let entry = live.get(name);
      if (entry) {
        live.delete(name);
        entry.item.value = item;
      } else {
        const held = signal(item);
        const [element, off] = scope(() => make(held, item), true);
        entry = { item: held, element, off };
      }
      next.set(name, entry);
      if (entry.element === at) at = at.nextSibling;
      else parent.insertBefore(entry.element, at);
    }
    for (const entry of live.values()) {
      entry.off();
      entry.element.remove();
    }
    live = next;
  });
  onCleanup(() => {
    for (const entry of live.values()) entry.off();
  });
  return parent;
}
