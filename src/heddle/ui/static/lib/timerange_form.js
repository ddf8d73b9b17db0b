// Other time ranges: those that have a name, and any by its two ends.
import { dialog } from "./dialog.js";
import { h } from "./dom.js";
import { date } from "./format.js";
import { field } from "./panels.js";
import { button } from "./parts.js";
import { setQuery } from "./router.js";

const LONGER = [["12h", "Last 12 hours"], ["3d", "Last 3 days"], ["90d", "Last 90 days"], ["365d", "Last year"]];

/** Offer ranges, first those of `names`; `pick` takes one by its name, and what is typed goes into the address. */
export function chooseRange(range, pick, names) {
  return dialog("Time range", (close) => {
    const end = (label, value) => {
      const input = h("input", { type: "datetime-local", step: 1, value: localTime(value) });
      return [input, field(label, input)];
    };
    const [[from, fromField], [to, toField]] = [end("From", range.from), end("To", range.to)];
    const show = (event) => {
      event.preventDefault();
      const [first, last] = [from, to].map((input) => input.value && new Date(input.value).getTime() / 1000);
      setQuery({ t: null, t0: first, t1: last, after: null, before: null }, false);
      close();
    };
    const named = ([name, words]) =>
      button(words, () => {
        pick(name);
        close();
      }, { "aria-pressed": String(range.preset === name), autofocus: name === "today" });
    return [
      h("div.rangenames", { role: "group", "aria-label": "Ranges" }, [...names, ...LONGER].map(named)),
      h("form", { onsubmit: show }, h("div.rangeends", fromField, toField),
        h("div.actions", button("Cancel", () => close()), h("button.button.primary", { type: "submit" }, "Show"))),
    ];
  });
}

function localTime(value) {
  const at = date(value);
  return at ? new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19) : "";
}
