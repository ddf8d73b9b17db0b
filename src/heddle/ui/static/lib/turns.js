// Stepping through the turns of a conversation: j and k from one to the next, pages beyond.
import { h } from "./dom.js";
import { int } from "./format.js";
import { keys } from "./parts.js";
import { path, projectId, query, setQuery } from "./router.js";

/** The address of the list of threads with their statistics; `asked` are texts. */
export function threadsAddress(asked) {
  const [entity, project] = projectId().split("/");
  return `/_ui/api/threads${path`/${entity}/${project}`}?${new URLSearchParams(asked)}`;
}

/**
 * Keys for turns inside a box: sections with `data-turn`; the chosen one is `turn` in the address. Returns what must be
 * called when the turns of a page are there.
 * @param {() => HTMLElement} box
 * @param {() => number} number the page that is shown
 * @param {() => number} pages how many there are
 * @param {() => boolean} isBusy whether the turns that show are still those of another page
 */
export function turnSteps(box, number, pages, isBusy) {
  let edge = query("turn") ? "address" : "";
  const turns = () => /** @type {HTMLElement[]} */ ([...box().querySelectorAll("[data-turn]")]);
  const show = (turn) => {
    setQuery({ turn: turn.dataset.turn });
    turn.scrollIntoView({ block: "start" });
    turn.focus({ preventScroll: true });
  };
  const step = (by) => {
    if (isBusy()) return;
    const list = turns();
    const at = list.findIndex((turn) => turn.dataset.turn === query("turn"));
    const next = list[at < 0 ? (by > 0 ? 0 : list.length - 1) : at + by];
    if (next) show(next);
    else if (number() + by >= 1 && number() + by <= pages()) {
      edge = by > 0 ? "first" : "last";
      setQuery({ page: number() + by, turn: null }, false);
    }
  };
  keys({ j: [() => step(1), "next turn"], k: [() => step(-1), "previous turn"] });
  return () =>
    queueMicrotask(() => {
      const list = turns();
      if (!edge || !list.length) return;
      const wanted =
        edge === "address" ? list.find((turn) => turn.dataset.turn === query("turn")) : list.at(edge === "first" ? 0 : -1);
      edge = "";
      if (wanted) show(wanted);
    });
}

/** The pages of turns, the newest last; the last one needs no number in the address. */
export function turnPager(number, pages, size, total) {
  const open = (to) => setQuery({ page: to >= pages() ? null : to, turn: null }, false);
  const step = (label, to, isThere) =>
    h("button.button", { type: "button", disabled: () => !isThere(), onclick: () => open(to()) }, label);
  const isLater = () => number() < pages();
  const isEarlier = () => number() > 1;
  keys({
    "[": [() => isEarlier() && open(number() - 1), "previous page"],
    "]": [() => isLater() && open(number() + 1), "next page"],
  });
  const shown = () => `Turns ${int((number() - 1) * size + 1)} to ${int(Math.min(total(), number() * size))} of ${int(total())}`;
  return h(
    "div.pager",
    h("span", shown),
    h("span.grow"),
    step("First", () => 1, isEarlier),
    step("Previous", () => number() - 1, isEarlier),
    step("Next", () => number() + 1, isLater),
    step("Last", () => pages(), isLater),
  );
}
