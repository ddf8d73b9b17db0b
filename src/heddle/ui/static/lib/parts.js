// The small parts that pages are made of: icons, keys, headers, tabs, chips, states.
import { computed, effect, h, onCleanup, signal, untrack } from "./dom.js";
import { awaitServer, lacksModule } from "./data.js";
import { exact, when } from "./format.js";
import { config, projectId, refusal } from "./router.js";
import { loadView } from "./views.js";

/** The icons that the frame and lists need at once; all others are drawn from `icons.svg`. */
const ICONS = {
  add: "M12 5v14M5 12h14",
  annotate: "M5 7l2 2 4-4M5 17l2 2 4-4M14 7h6M14 17h6",
  calendar: "M5 6h14v14H5zM5 10h14M9 3v4M15 3v4",
  bell: "M6 16V11a6 6 0 0112 0v5l2 2H4zM10 21h4",
  calls: "M4 6h16M4 12h16M4 18h10",
  chart: "M4 18l5-7 4 4 7-10M15 5h5v5",
  chevron: "M9 6l6 6-6 6",
  close: "M6 6l12 12M18 6L6 18",
  code: "M9 7l-5 5 5 5M15 7l5 5-5 5",
  columns: "M4 5h16v14H4zM10 5v14M15 5v14",
  copy: "M9 9h10v10H9zM5 15V5h10",
  cost: "M12 3v18M16 7.5C16 5.5 14 5 12 5s-4 .8-4 3 2 2.8 4 3.5 4 1.5 4 3.700S14 19 12 19s-4-.6-4-2.5",
  data: "M4 6c0-3 16-3 16 0v12c0 3-16 3-16 0zM4 6c0 3 16 3 16 0M4 12c0 3 16 3 16 0",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  engine: "M7 7h10v10H7zM10 3v4M14 3v4M10 17v4M14 17v4M3 10h4M3 14h4M17 10h4M17 14h4",
  error: "M12 4l9 16H3zM12 10v5M12 17.500v.5",
  evaluate: "M5 19V9M12 19V5M19 19v-7",
  folder: "M3 6h7l2 2h9v11H3z",
  leaderboard: "M4 20V12h5v8M9 20V5h6v15M15 20v-6h5v6",
  logout: "M10 4H5v16h5M14 8l4 4-4 4M18 12H9",
  models: "M12 3l8 4.500v9L12 21l-8-4.500v-9zM4 7.500l8 4.5 8-4.500M12 12v9",
  objects: "M4 4h7v7H4zM13 4h7v7h-7zM4 13h7v7H4zM13 13h7v7h-7z",
  overview: "M4 13h6V4H4zM14 20h6v-9h-6zM4 20h6v-4H4zM14 8h6V4h-6z",
  play: "M7 5l11 7-11 7z",
  refresh: "M19 8a8 8 0 10.5 7M19 3v5h-5",
  replay: "M5 8a8 8 0 11-.5 7M5 3v5h5",
  save: "M5 4h11l3 3v13H5zM8 4v5h7V4M8 20v-6h8v6",
  scorer: "M12 3l2.7 5.6 6.1.8-4.5 4.2 1.1 6.100L12 16.8 6.6 19.700l1.1-6.100L3.2 9.400l6.1-.800z",
  search: "M11 5a6 6 0 100 12 6 6 0 000-12zM20 20l-4.5-4.5",
  settings: "M12 9a3 3 0 100 6 3 3 0 000-6zM4 12h2M18 12h2M12 4v2M12 18v2M6.3 6.300l1.4 1.400M16.3 16.300l1.4 1.400M6.3 17.700l1.4-1.400M16.3 7.700l1.4-1.4",
  sun: "M12 8a4 4 0 100 8 4 4 0 000-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.5 1.500M17.5 17.500L19 19M5 19l1.5-1.500M17.5 6.500L19 5",
  threads: "M5 5h14v10H9l-4 4z",
  trajectory: "M4 19c4 0 4-7 8-7s4-7 8-7M4 19h.01M12 12h.01M20 5h.01",
};

/** A line icon of 16 px by its name; decoration only, so the control around it needs a label. */
export function icon(name) {
  const drawn = ICONS[name] ? h("path", { d: ICONS[name] }) : h("use", { href: `${config.base}lib/icons.svg#${name}` });
  return h("svg.icon", { viewBox: "0 0 24 24", "aria-hidden": "true" }, drawn);
}

const TYPING = "input,textarea,select,[contenteditable],dialog";
const known = new Map();

/**
 * Bind keys while the page is open: `{j: [action, "what it does"], …}`; not while the user types or a dialog is open.
 * What is bound shows in the list that `?` opens.
 */
export function keys(bindings) {
  const listen = (event) => {
    if (event.defaultPrevented || event.metaKey || event.ctrlKey || event.altKey) return;
    if (event.target.closest?.(TYPING) || document.querySelector("dialog[open]:not(.drawer)")) return;
    const bound = bindings[event.key];
    if (!bound) return;
    const onControl = (event.key === "Enter" || event.key === " ") && event.target.closest?.("button,a,summary");
    if (onControl) return;
    event.preventDefault();
    bound[0](event);
  };
  addEventListener("keydown", listen);
  known.set(bindings, bindings);
  onCleanup(() => {
    removeEventListener("keydown", listen);
    known.delete(bindings);
  });
}

/** The keys that are bound now: [[key, what it does], …]. */
export const boundKeys = () =>
  [...known.values()].flatMap((bindings) => Object.entries(bindings).map(([key, [, text]]) => [key, text]));

/** The bar at the top of a page: crumbs are [[text, href], …]; the title is the page's only h1. */
export function header({ crumbs = [], title, extra = null, actions = null }) {
  return h("header.top",
    crumbs.length > 0 && h("div.crumbs",
      crumbs.map(([text, href]) => [h("a.crumb", { href }, text), h("span.separator", { "aria-hidden": "true" }, "/")])),
    h("h1", { onpointerenter: tellWhole }, title), extra, h("span.grow"), h("div.topactions", actions));
}

/** Show the whole text of an element that cuts it to the pointer. */
function tellWhole({ currentTarget: element }) {
  element.title = element.scrollWidth > element.clientWidth ? element.textContent : "";
}

/** A whole page: header, then content in a scrolling column (`fixed`: the content scrolls itself). */
export function page(head, content, { fixed = false, label = "Content" } = {}) {
  return h("div.page", header(head), fixed ? content : h("div.scroll", { tabindex: 0, role: "region", "aria-label": label },
    content));
}

/** A time, written by `write`; its title has the year, the second and the zone. */
export const timeNode = (value, write = when) => (value == null || value === "" ? "" : h("time", { title: exact(value) }, write(value)));

/** Set the title of the browser's tab: what the page shows, and the project it shows it of. */
export function title(text) {
  document.title = [text, projectId(), "heddle"].filter(Boolean).join(" · ");
}

/**
 * A button; `kind` is "primary", "danger", "quiet" or nothing; `label` names one that shows only an icon.
 * @param {any} text
 * @param {(event: any) => any} onclick
 * @param {any} [options] kind, iconName, label, and attributes
 */
export function button(text, onclick, { kind = "", iconName = "", label = "", needs = "", ...attributes } = {}) {
  return h("button.button", { type: "button", onclick, class: kind, "aria-label": text ? null : label || null,
    title: label || null, ...attributes, ...limits(needs) }, iconName && icon(iconName), text);
}

/** The attributes of a control of what needs a scope: none where that may be done here. */
export function limits(needs) {
  const refused = refusal(needs);
  return refused ? { disabled: true, title: refused } : {};
}

/** A round-cornered group of choices, one pressed: options are [[value, text], …]; value() is the one chosen. */
export function segments(label, options, value, onchange) {
  return h("div.segments", { role: "group", "aria-label": label }, options.map(([name, text]) =>
    h("button", { type: "button", "aria-pressed": () => String(value() === name), onclick: () => onchange(name) }, text)));
}

/** What kind of call it is, in its colour. */
export function kindChip(kind) {
  return kind ? h("span.kind", { "data-kind": kind }, kind) : null;
}

/** A state as a dot that differs by shape as well as colour: success, error, running, waiting. */
export function dot(status) {
  return h("span.dot", { class: status, role: "img", "aria-label": status });
}

/**
 * A chip of text; with `onremove` it can be taken away, by those who have the scope `needs`.
 * @param {any} text
 * @param {(() => any) | null} [onremove]
 * @param {any} [options] needs, and attributes
 */
export function chip(text, onremove, { needs = "", ...attributes } = {}) {
  return h("span.chip", attributes, text, onremove &&
    h("button", { type: "button", onclick: onremove, "aria-label": `Remove ${typeof text === "string" ? text : "filter"}`,
      ...limits(needs) }, icon("close")));
}

/** A line that the server made, with the media beside it. */
export function madeLine(text, media, kind = "") {
  return h("span.valueline", { class: kind, dir: "auto", title: text }, thumbnails(media ?? []), text ?? "");
}

/** Small pictures and signs of other media; what draws them is loaded when there are some. */
export function thumbnails(media) {
  if (!media.length) return null;
  const shown = signal(/** @type {any} */ (null));
  const project = projectId();
  loadView("media").then(({ thumbnail }) => {
    shown.value = () => media.map((part) => thumbnail(part, project));
  });
  return h("span.thumbs", () => shown.value);
}

const REFUSED = { 403: "Not allowed", 404: "Not found", 429: "Too many requests" };

/** What an error says to people; browsers have words of their own for a part of the page that did not come. */
export const messageOf = (error) => (lacksModule(error)
  ? "A part of this page could not be loaded. Try again, or reload the page." : error.message);

/** What went wrong, with the request's id and a way to try again. */
export function failure(error, retry) {
  const isMissing = error.status === 404;
  const details = [isMissing && error.message, error.requestId && `Request ${error.requestId}`].filter(Boolean);
  return h("div.failure", { role: "alert" },
    h("div", h("b", REFUSED[error.status] ?? "Something went wrong"),
      h("p", isMissing ? "It may have been deleted, or its address is mistyped." : messageOf(error)),
      details.length > 0 && h("small", details.join(" · "))),
    retry && button("Try again", retry, { iconName: "refresh" }));
}

/**
 * What a resource shows: a skeleton while the first answer is awaited (CSS holds it back for 150 ms), the failure, or
 * what `show` makes of the data.
 * @template T
 * @param {{data: import("./dom.js").Signal<T|null>, error: any, busy: any, reload: () => void}} state
 * @param {(data: T) => any} show
 */
export function loaded(state, show) {
  return () => {
    if (state.error.value) return failure(state.error.value, state.reload);
    return state.data.value === null ? (state.busy.value ? skeleton() : null) : show(state.data.value);
  };
}

/** Whether the window is so narrow that a list gives way to what was chosen in it (`.listdetail`). */
export const isNarrow = () => matchMedia("(max-width: 640px)").matches;

/** The way from what was chosen to the list, where there is room for one of them only. */
export const backToList = (text, action) => button(text, action, { kind: "backtolist", iconName: "left" });

/** Grey lines where something will be. */
export function skeleton(rows = 6) {
  return h("div.skeleton", { "aria-hidden": "true" }, Array.from({ length: rows }, () => h("i")));
}

/** What `show` makes of a module that is loaded now: a skeleton until it is there; a failure can be tried again. */
export function later(load, show, rows = 4) {
  const content = signal(/** @type {any} */ (skeleton(rows)));
  let hasFailed = false;
  const begin = () => {
    hasFailed = false;
    load().then(
      (module) => { content.value = () => untrack(() => show(module)); },
      (error) => {
        hasFailed = true;
        awaitServer();
        content.value = failure(error, begin);
      },
    );
  };
  begin();
  const again = () => hasFailed && begin();
  addEventListener("heddle:retry", again);
  onCleanup(() => removeEventListener("heddle:retry", again));
  return () => content.value;
}

/** Says where a list shows only its first rows; `total` is null where nobody knows how many there are. */
export const cutNote = (most, total = null) =>
  h("span.dim", `The first ${most.toLocaleString("en")}${total === null ? "" : ` of ${total.toLocaleString("en")}`}`);

/**
 * A field to search with; it follows `value()`, `oninput` gets the text `pause` ms after the last key, `label` names it.
 * @param {string} label
 * @param {() => string} value
 * @param {(text: string) => void} oninput
 * @param {any} [options] pause, and attributes
 */
export function searchBox(label, value, oninput, { pause = 0, ...attributes } = {}) {
  let timer = 0;
  onCleanup(() => clearTimeout(timer));
  const told = () => oninput(input.value);
  const typed = () => {
    clearTimeout(timer);
    if (pause) timer = setTimeout(told, pause);
    else told();
  };
  const input = h("input", { type: "search", placeholder: label, "aria-label": label, oninput: typed, ...attributes });
  const wanted = computed(value);
  effect(() => {
    // The address has what is typed without the spaces around it.
    if (input.value.trim() !== wanted.value.trim()) input.value = wanted.value;
  });
  return h("label.search", icon("search"), input);
}
