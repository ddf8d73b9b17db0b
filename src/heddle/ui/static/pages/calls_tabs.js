// Saved views as tabs above the list: shared by everybody in the project; the first one is what the page opens with.
import { effect, h } from "../lib/dom.js";
import { resource } from "../lib/data.js";
import { attempt, menu } from "../lib/dialog.js";
import { button } from "../lib/parts.js";
import { loadStyle, may, query, setQuery } from "../lib/router.js";
import { readTabs, removeView, renameView, saveView, show, storeOrder, updateView } from "./calls_views.js";

await loadStyle("pages/calls_tabs");

const ALL = "*";

/**
 * The tabs; nothing where no view is saved.
 * @param {any} context of the page of calls
 * @param {string[]} state the names in the address that a view sets
 */
export function viewTabs(context, state) {
  const tabs = resource(() => ({}), readTabs);
  context.tabs = tabs;
  const cleared = Object.fromEntries([...state, "after", "before", "peek"].map((name) => [name, null]));
  const isBare = () => !query("view") && !state.some((name) => query(name));
  const viewOf = (found, name) => found.views.find((view) => view.object_id === name);
  effect(() => {
    const found = tabs.data.value;
    const first = found && viewOf(found, found.order[0]);
    if (first && isBare()) show(first, context, true);
  });
  const order = async (names) => {
    if (await attempt(() => storeOrder(names))) tabs.reload();
  };
  const open = (found, name) => {
    if (name !== ALL) show(viewOf(found, name), context, false);
    else setQuery({ ...cleared, view: found.order[0] === ALL ? null : ALL }, false);
  };
  const current = (found) => (viewOf(found, query("view")) ? query("view") : ALL);
  return () => {
    const found = tabs.data.value;
    if (!found?.views.length) return null;
    return h("nav.viewtabs", { "aria-label": "Views" },
      found.order.map((name) => tab(name, found, { open, order, current, context, tabs, viewOf })),
      button(null, () => saveView(context), { kind: "quiet", iconName: "add", label: "Save as view", needs: "write" }));
  };
}

function tab(name, found, { open, order, current, context, tabs, viewOf }) {
  const view = viewOf(found, name);
  const text = view ? view.val.label : "All";
  const at = found.order.indexOf(name);
  const isCurrent = () => current(found) === name;
  const moved = (to) => {
    const names = found.order.filter((one) => one !== name);
    names.splice(to, 0, name);
    return order(names);
  };
  // Also after a refusal: somebody else may have changed the view.
  const then = (action) => async () => { await action(); tabs.reload(); };
  const items = () => [
    view && ["Save changes", then(() => attempt(() => updateView(view, context), "View saved")), { iconName: "save", needs: "write" }],
    view && ["Rename", then(() => renameView(view)), { iconName: "edit", needs: "write" }],
    ["Make default", () => moved(0), { iconName: "check", needs: "write", disabled: at === 0 }],
    ["Move left", () => moved(at - 1), { iconName: "left", needs: "write", disabled: at === 0 }],
    ["Move right", () => moved(at + 1), { iconName: "right", needs: "write", disabled: at === found.order.length - 1 }],
    view && ["Delete", then(() => removeView(view)), { iconName: "trash", danger: true, needs: "delete" }],
  ];
  const drop = (event) => {
    event.preventDefault();
    const dragged = event.dataTransfer.getData("text/x-heddle-view");
    if (!dragged || dragged === name) return;
    const names = found.order.filter((one) => one !== dragged);
    names.splice(found.order.indexOf(dragged) < at ? names.indexOf(name) + 1 : names.indexOf(name), 0, dragged);
    order(names);
  };
  return h("span.viewtab", { class: () => (isCurrent() ? "current" : ""), ondragover: (event) => event.preventDefault(), ondrop: drop },
    h("button.viewname", { type: "button", draggable: String(may("write")), dir: "auto", "aria-current": () => (isCurrent() ? "true" : null),
      title: at === 0 ? `${text}, the default` : text, onclick: () => open(found, name),
      ondragstart: (event) => event.dataTransfer.setData("text/x-heddle-view", name) }, text),
    () => (isCurrent() ? menu(null, items, { kind: "quiet", label: `More for ${text}` }) : null));
}
