// The address is the state: pages are chosen by path, everything a page shows by the query.
import { h, scope, signal, untrack } from "./dom.js";

/** What the server sent with this page: {base, root, version, user, grants: [[reach, scopes]], needs_key, routes: [[path, page]], styles}. */
export const config = JSON.parse(document.querySelector('meta[name="heddle"]').getAttribute("content"));

/** The current address; read it inside an effect to follow it. */
export const here = signal(new URL(location.href));

/** The address that the page on the screen shows: a page that is about to go does not see the next one's query. */
const shown = signal(here.peek());

/** The path parameters of the page that is open: {entity, project, …}. */
export const params = signal(/** @type {Record<string, string>} */ ({}));

/** Where the pages of this tab were left, by their entries in the history: {entry: {boxes: [[name, place, top, left], …], opened}}. */
const leftAt = JSON.parse(sessionStorage.getItem("heddle.left") ?? "{}");
const MOST_LEFT = 50;
const nameEntry = () => ({ entry: Math.random().toString(36).slice(2) });
if (!history.state) history.replaceState(nameEntry(), "");
let entry = history.state.entry;
/** Where the entry that the browser came back to was left, until its page is there. */
let returning = leftAt[entry];
let endReturn = () => {};
/** The address of the page without what is open beside it, where that was opened here: Back leads there. */
let alone = history.state.alone ?? null;
let isClosing = false;

/** Open an address of this site; `replace` leaves no entry behind in the history. */
export function go(url, replace = false, more = {}) {
  if (replace) history.replaceState(history.state, "", url);
  else {
    leave(new URL(url, location.href).href);
    history.pushState({ ...nameEntry(), ...more }, "", url);
    ({ entry, alone = null } = history.state);
  }
  follow();
}

/** Keep where the page is left, and what it `opened`. */
function leave(opened = leftAt[entry]?.opened) {
  endReturn();
  returning = null;
  // A page that was never there was not scrolled.
  if (here.peek().pathname !== shown.peek().pathname) return;
  const boxes = [...document.querySelectorAll("main *")].filter((box) => box.scrollTop || box.scrollLeft)
    .map((box) => [box.className, boxesOf(box.className).indexOf(box), box.scrollTop, box.scrollLeft]);
  delete leftAt[entry];
  for (const old of Object.keys(leftAt).slice(0, 1 - MOST_LEFT)) delete leftAt[old];
  leftAt[entry] = { boxes, opened };
  sessionStorage.setItem("heddle.left", JSON.stringify(leftAt));
}

const boxesOf = (name) => [...document.getElementsByClassName(name)];

/** Scroll to where the page was left and focus what it had opened, as its content comes; whatever the user does ends it. */
function comeBack(element) {
  if (!returning) return;
  let { boxes, opened } = returning;
  returning = null;
  const move = () => {
    boxes = boxes.filter(([name, place, top, left]) => {
      const box = boxesOf(name)[place];
      box?.scrollTo(left, top);
      return !box || Math.abs(box.scrollTop - top) > 1;
    });
    const link = opened && [...element.querySelectorAll("a[href]")].find(({ href }) => href === opened);
    if (link) {
      link.focus({ preventScroll: true });
      opened = null;
    }
    if (!boxes.length && !opened) endReturn();
  };
  const observer = new MutationObserver(move);
  const events = ["wheel", "pointerdown", "keydown"];
  endReturn = () => {
    observer.disconnect();
    for (const event of events) removeEventListener(event, endReturn, true);
  };
  for (const event of events) addEventListener(event, endReturn, true);
  observer.observe(element, { childList: true, subtree: true, attributeFilter: ["style"] });
  move();
}

function follow() {
  const isSamePage = location.pathname === shown.peek().pathname;
  here.value = new URL(location.href);
  if (isSamePage) shown.value = here.peek();
}

/** Change query parameters of the open page; empty ones are dropped, so that addresses stay short. */
export function setQuery(changes, replace = true) {
  const url = withQuery(changes);
  if (url.href !== location.href) go(url.pathname + url.search, replace);
}

/** The same where the parameter `name` says what is open beside the page (a drawer), which Back closes. */
export function setBeside(name, changes) {
  if (isClosing) return;
  const url = withQuery(changes);
  const isOpen = [here.peek(), url].map(({ searchParams }) => searchParams.has(name));
  if (!isOpen[0] && isOpen[1]) go(url.pathname + url.search, false, { alone: location.href });
  else if (isOpen[0] && !isOpen[1] && url.href === alone) {
    isClosing = true;
    history.back();
  } else setQuery(changes);
}

function withQuery(changes) {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(changes)) {
    if (value == null || value === "" || value === false) url.searchParams.delete(name);
    else url.searchParams.set(name, value);
  }
  return url;
}

/** One query parameter of the open page, or null. */
export const query = (name) => shown.value.searchParams.get(name);

/** The address of a page outside any project, with a query. */
export function siteLink(path, search = {}) {
  return config.root + path + searchText(search);
}

/**
 * The address of a page of the open project (or of `project`, "entity/project"): `link("/traces", {op: "x"})`.
 * Parts of the path that hold names must come through `encodeURIComponent` or the tag `path`.
 */
export function link(path = "", search = {}, project = projectId()) {
  const [entity, name] = project.split("/");
  return `${config.root}/${encodeURIComponent(entity)}/${encodeURIComponent(name)}/weave${path}${searchText(search)}`;
}

/** A path from parts, each part encoded: path`/objects/${name}/versions/${digest}`. */
export function path(texts, ...values) {
  return texts.reduce((all, text, index) => all + encodeURIComponent(values[index - 1]) + text);
}

/** The open project as "entity/project", or "" outside. */
export function projectId() {
  const { entity, project } = params.value;
  return entity ? `${entity}/${project}` : "";
}

/** Whether who looks at the page has a scope in the open project or, outside of projects, in any. */
export function may(scope) {
  const place = projectId();
  return config.grants.some(([reach, scopes]) => scopes.includes(scope)
    && (!place || !reach || reach === place || place.startsWith(`${reach}/`)));
}

/** Whether who looks at the page administers the whole server. */
export const runsServer = () => config.grants.some(([reach, scopes]) => !reach && scopes.includes("admin"));

const WHO = { read: "a viewer", annotate: "an annotator", write: "an editor", delete: "an admin", admin: "an admin" };

/** Why what needs a scope cannot be done here, null where it can. */
export const refusal = (scope) => (!scope || may(scope) ? null : `Only ${WHO[scope]} of ${projectId() || "a project"} may do this`);

function searchText(search) {
  const pairs = Object.entries(search).filter(([, value]) => value != null && value !== "" && value !== false);
  return pairs.length ? `?${new URLSearchParams(pairs)}` : "";
}

addEventListener("popstate", () => {
  leave();
  if (!history.state) history.replaceState(nameEntry(), "");
  // What was open beside the page is closed: the page itself was not left.
  returning = location.href === alone ? null : leftAt[history.state.entry];
  isClosing = false;
  ({ entry, alone = null } = history.state);
  follow();
});
addEventListener("pagehide", () => leave());

addEventListener("click", (event) => {
  const anchor = /** @type {Element} */ (event.target).closest?.("a[href]");
  if (!(anchor instanceof HTMLAnchorElement) || event.defaultPrevented || event.button) return;
  if (event.metaKey || event.ctrlKey || event.shiftKey || anchor.target || anchor.hasAttribute("download")) return;
  if (anchor.origin !== location.origin || !match(anchor.pathname)) return;
  event.preventDefault();
  go(anchor.href);
});

/** The page and the parameters of a path, or null: patterns hold `:name` for one part and `*name` for the rest. */
export function match(pathname) {
  const parts = pathname.slice(config.root.length).replace(/\/+$/, "").split("/");
  for (const [pattern, page] of config.routes) {
    const found = matchParts(pattern.replace(/\/+$/, "").split("/"), parts);
    if (found) return { page, params: found };
  }
  return null;
}

function matchParts(pattern, parts) {
  const found = {};
  for (let index = 0; index < pattern.length; index++) {
    const wanted = pattern[index];
    if (wanted.startsWith("*")) {
      found[wanted.slice(1)] = decode(parts.slice(index).join("/"));
      return parts.length > index ? found : null;
    }
    if (index >= parts.length) return null;
    if (wanted.startsWith(":")) {
      if (!parts[index]) return null;
      found[wanted.slice(1)] = decode(parts[index]);
    } else if (wanted !== parts[index]) return null;
  }
  return parts.length === pattern.length ? found : null;
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Load a style sheet such as "pages/trace", if there is one and it is not loaded yet. */
export function loadStyle(name) {
  if (!config.styles.includes(name) || document.querySelector(`link[data-style="${name}"]`)) return Promise.resolve();
  return new Promise((resolve) => {
    const sheet = h("link", { rel: "stylesheet", href: `${config.base}${name}.css`, "data-style": name });
    sheet.onload = sheet.onerror = () => resolve(null);
    document.head.append(sheet);
  });
}

/**
 * Keep the page of the current path in an element; the same page stays when only the query changes.
 * A page module's default export is a function of the path parameters that returns a node.
 */
export function outlet(element, showFailure) {
  let current = null;
  let off = null;
  let turn = 0;
  return () => {
    const pathname = here.value.pathname;
    if (pathname === current) {
      comeBack(element);
      return;
    }
    current = pathname;
    const mine = ++turn;
    const found = match(pathname) ?? { page: "missing", params: {} };
    Promise.all([import(`../pages/${found.page}.js`), loadStyle(`pages/${found.page}`)]).then(([module]) => {
      if (mine !== turn) return;
      off?.();
      params.value = found.params;
      shown.value = here.peek();
      const [node, end] = untrack(() => scope(() => module.default(found.params), true));
      off = end;
      element.replaceChildren(node);
      // The first page leaves the focus at the top, where the link that skips the navigation bar is.
      if (mine > 1) element.focus({ preventScroll: true });
      comeBack(element);
    }).catch((error) => {
      if (mine !== turn) return;
      current = null;
      showFailure(error);
    });
  };
}
