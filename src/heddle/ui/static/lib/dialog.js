// What floats above a page: dialogs, a drawer, menus and short messages.
import { effect, h, scope, signal } from "./dom.js";
import { button, failure, icon, messageOf, skeleton } from "./parts.js";
import { here, loadStyle, refusal } from "./router.js";

await loadStyle("lib/dialog");

/** Close what floats above a page once another page opens. */
function closeWithPage(close) {
  const { pathname } = here.peek();
  effect(() => here.value.pathname !== pathname && close());
}

/**
 * Open a dialog; resolves to what `close(value)` was given, or null when it was left. Nothing behind it can be used.
 * @param {string} heading
 * @param {(close: (value?: any) => void) => any} make its content
 * @param {{wide?: boolean}} [options]
 */
export function dialog(heading, make, { wide = false } = {}) {
  return new Promise((resolve) => {
    let result = null;
    const close = (value = null) => {
      result = value;
      element.close();
    };
    const [element, off] = scope(() => {
      closeWithPage(close);
      return h("dialog.dialog", { class: wide ? "wide" : "", "aria-label": heading },
        h("header", h("h2", heading), button(null, () => close(), { kind: "quiet", iconName: "close", label: "Close" })),
        h("div.dialogbody", make(close)));
    }, true);
    element.addEventListener("close", () => {
      element.remove();
      off();
      resolve(result);
    });
    let pressed = null;
    element.addEventListener("pointerdown", (event) => { pressed = event.target; });
    // A stray click loses no form, nor does selecting a text up to beyond the edge.
    element.addEventListener("click", ({ target }) => target === element && pressed === element && !element.querySelector("form") && close());
    // Nor does Escape lose what was typed into one, without a question.
    let isTyped = false;
    element.addEventListener("input", ({ target }) => {
      isTyped ||= /** @type {Element} */ (target).matches("form :is(textarea, input:not([type=checkbox], [type=radio], [type=range]))");
    });
    element.addEventListener("cancel", async (event) => {
      if (event.target !== element || !isTyped) return;
      event.preventDefault();
      if (await confirm("Discard what you entered?", `Nothing of “${heading}” has been saved.`, { action: "Discard" })) close();
    });
    document.body.append(element);
    element.showModal();
    // A form begins in its first field, not at what closes it.
    const first = element.querySelector("[autofocus]") ? null : element.querySelector(".dialogbody :is(input,select,textarea)");
    if (first instanceof HTMLElement) first.focus();
  });
}

/**
 * A dialog whose content is made of what `load` resolves to; a failure is shown in it, with a way to try again.
 * @param {string} heading
 * @param {() => Promise<any>} load
 * @param {(found: any, close: (value?: any) => void) => any} make
 * @param {{wide?: boolean}} [options]
 */
export function loadedDialog(heading, load, make, options) {
  return dialog(heading, (close) => {
    const content = signal(/** @type {any} */ (skeleton(4)));
    const begin = () => load().then(
      (found) => { content.value = make(found, close); },
      (error) => { content.value = failure(error, begin); },
    );
    begin();
    return () => content.value;
  }, options);
}

/** Ask before something is done, which with `danger` cannot be undone: Enter then leaves it; resolves to true or false. */
export async function confirm(heading, text, { action = "Delete", danger = true } = {}) {
  return (await dialog(heading, (close) => [
    h("p", text),
    h("div.actions", button("Cancel", () => close(false), { autofocus: danger }),
      button(action, () => close(true), { kind: danger ? "danger" : "primary", autofocus: !danger })),
  ])) === true;
}

/**
 * Have `store(after)` store what was edited; where that fails, as somebody else has stored it since `after`, ask, and store
 * it over theirs. False when that is not wanted.
 * @template T
 * @param {string} what it is
 * @param {string} theirs what becomes of the changes of the others
 * @param {(after?: any) => Promise<T>} store
 * @param {any} after
 * @returns {Promise<T|false>}
 */
export async function storeOver(what, theirs, store, after) {
  try {
    return await store(after);
  } catch (error) {
    if (error.status !== 409) throw error;
    const text = `Someone else changed or deleted this ${what} while you were editing it. ${theirs}`;
    return (await confirm("Overwrite other changes?", text, { action: "Save mine" })) && store();
  }
}

/**
 * Ask for a few values; resolves to {name: text, …} or null. Fields are {name, label, value, hint, type, options, required}.
 * `submit` may do the work with them and raise an error, which is shown and keeps the dialog open.
 */
export function form(heading, fields, { action = "Save", text = "", submit = null } = {}) {
  return dialog(heading, (close) => {
    const problem = h("p.problem", { role: "alert" });
    const inputs = Object.fromEntries(fields.map((entry) => [entry.name, control(entry)]));
    const done = async (event) => {
      event.preventDefault();
      const values = Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, read(input)]));
      try {
        close(submit ? ((await submit(values)) ?? values) : values);
      } catch (error) {
        problem.textContent = error.message;
      }
    };
    return h("form", { onsubmit: done }, text && h("p", text),
      fields.map((entry) => h("label.field", h("span", entry.label), inputs[entry.name], entry.hint && h("small", entry.hint))),
      problem, h("div.actions", button("Cancel", () => close()), h("button.button.primary", { type: "submit" }, action)));
  });
}

function control({ type = "text", value = "", options = null, required = false, ...rest }) {
  const attributes = { required,
    ...Object.fromEntries(Object.entries(rest).filter(([name]) => name !== "label" && name !== "hint")) };
  if (options) return h("select", attributes,
    options.map(([name, text]) => h("option", { value: name, selected: name === value }, text)));
  if (type === "textarea") return h("textarea", { rows: 6, ...attributes, value });
  if (type === "checkbox") return h("input", { type, ...attributes, checked: Boolean(value) });
  return h("input", { type, ...attributes, value });
}

const read = (input) => (input.type === "checkbox" ? input.checked : input.value);

/** A panel at the right that leaves the page usable; `make(close)` gives its content. Returns what closes it. */
export function drawer(heading, make, onclose = () => {}) {
  document.querySelector("dialog.drawer")?.dispatchEvent(new Event("replace"));
  let open = true;
  const close = () => {
    if (!open) return;
    open = false;
    element.close();
    element.remove();
    off();
    onclose();
  };
  const [element, off] = scope(() => {
    closeWithPage(close);
    return h("dialog.drawer", { "aria-label": heading, onreplace: () => close() },
      h("header", h("h2", heading), button(null, () => close(), { kind: "quiet", iconName: "close", label: "Close" })),
      h("div.dialogbody", { tabindex: 0 }, make(close)));
  }, true);
  element.addEventListener("keydown", (event) => event.key === "Escape" && close());
  document.body.append(element);
  element.show();
  return close;
}

/** A button that opens a menu; items are [[text, action, {iconName, danger, disabled}], …] or a function that gives them. */
export function menu(text, items, options = {}) {
  const opener = button(text, () => (open ? hide() : show()),
    { iconName: "more", "aria-haspopup": "menu", "aria-expanded": "false", ...options });
  const box = h("span.menubox", opener);
  let open = null;
  const hide = () => {
    open?.remove();
    open = null;
    opener.setAttribute("aria-expanded", "false");
    removeEventListener("pointerdown", outside, true);
    removeEventListener("scroll", scrolled, true);
  };
  const scrolled = (event) => !open?.contains(event.target) && placeNear(open, opener);
  const outside = (event) => !box.contains(event.target) && hide();
  const step = (event) => {
    const entries = /** @type {HTMLElement[]} */ ([...open.querySelectorAll("button:not(:disabled)")]);
    const at = entries.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    const to = { ArrowDown: at + 1, ArrowUp: at - 1 + entries.length, Home: 0, End: entries.length - 1 }[event.key];
    if (event.key === "Escape" || event.key === "Tab") {
      hide();
      if (event.key === "Escape") opener.focus();
      event.stopPropagation();
    } else if (to !== undefined) {
      event.preventDefault();
      entries[to % entries.length]?.focus();
    }
  };
  const show = () => {
    const list = typeof items === "function" ? items() : items;
    open = h("div.menu", { role: "menu", popover: "manual", onkeydown: step }, list.filter(Boolean)
      .map(([label, action, { iconName = "", danger = false, disabled = false, needs = "" } = {}]) =>
      h("button", { type: "button", role: "menuitem", disabled: disabled || Boolean(refusal(needs)), title: refusal(needs), class: danger ? "danger" : "",
        onclick: () => { hide(); opener.focus(); action(); } }, iconName && icon(iconName), label)));
    box.append(open);
    // Above everything, so that no box around the button cuts it.
    open.showPopover();
    placeNear(open, opener);
    opener.setAttribute("aria-expanded", "true");
    open.querySelector("button:not(:disabled)")?.focus({ preventScroll: true });
    addEventListener("pointerdown", outside, true);
    addEventListener("scroll", scrolled, true);
  };
  return box;
}

/** Put what floats below its button, or above it where there is no room; it ends at the button's nearer edge of the window. */
function placeNear(floating, anchor) {
  const [at, size] = [anchor.getBoundingClientRect(), floating.getBoundingClientRect()];
  const left = at.left + at.width / 2 < innerWidth / 2 ? at.left : at.right - size.width;
  const below = at.bottom + 4;
  const top = below + size.height > innerHeight - 8 ? Math.max(8, at.top - 4 - size.height) : below;
  floating.style.setProperty("left", `${Math.max(8, Math.min(left, innerWidth - size.width - 8))}px`);
  floating.style.setProperty("top", `${top}px`);
}

let messages = null;

/** A short message at the bottom, once as long as it stands there; `undo` offers to take back what was done. */
export function toast(text, { undo = null, kind = "" } = {}) {
  messages ??= document.body.appendChild(h("div.toasts", { role: "status", "aria-live": "polite" }));
  const leave = (event) => event.target.closest("a") && entry.remove();
  const entry = h("div.toast", { class: kind, onclick: leave }, h("span", text),
    undo && button("Undo", () => { entry.remove(); undo(); }, { kind: "quiet" }));
  if (!undo && typeof text === "string") for (const one of [...messages.children]) if (one.textContent === text) one.remove();
  messages.append(entry);
  // With something to press in it there must be time to press it.
  setTimeout(() => entry.remove(), undo || Array.isArray(text) ? 9000 : 4000);
}

/** Do something, and say it when it fails; resolves to its result, or undefined. */
export async function attempt(action, done = "") {
  try {
    const result = await action();
    if (done) toast(done);
    return result;
  } catch (error) {
    tellError(error);
    return undefined;
  }
}

/** Say that something failed. */
export function tellError(error) {
  toast(messageOf(error) + (error.requestId ? ` (request ${error.requestId})` : ""), { kind: "error" });
}
