// One column of the playground: a model with its parameters, its answer, and how to go on from there.
import { computed, effect, h, signal } from "../lib/dom.js";
import { choicesView, messageCard, messageList } from "../lib/chat.js";
import { attempt, menu } from "../lib/dialog.js";
import { compact, duration, int, money } from "../lib/format.js";
import { fromOpenai, plainText, toolCallsOf } from "../lib/messages.js";
import { button, failure } from "../lib/parts.js";
import { link, path } from "../lib/router.js";
import { columnOf, draftOf, MOST_COLUMNS } from "./playground_state.js";
import { modelField, modelMenu } from "./playground_model.js";
import { parametersButton } from "./playground_parameters.js";
import { choicesOf, runColumn, speedOf, wireChoice } from "./playground_run.js";
import { saveRow } from "./playground_save.js";

/** The column's section. */
export function columnView(state, column, number) {
  const run = () => runColumn(state, column);
  return h(
    "section.answercolumn",
    { "aria-label": () => `Column ${number()}` },
    h("header", modelField(column, number), modelMenu(state, column), parametersButton(column), columnMenu(state, column)),
    following(
      column,
      h(
        "div.answerscroll",
        { tabindex: 0, role: "region", "aria-label": () => `Answer ${number()}` },
        () => tailView(state, column),
        answerView(state, column, run),
      ),
    ),
    footer(state, column),
  );
}

/** A box that stays at its end while the answer grows, unless the reader scrolled away from it. */
function following(column, box) {
  let isAtEnd = true;
  box.addEventListener("scroll", () => {
    isAtEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 60;
  });
  effect(() => {
    if (column.answer.value?.state !== "running" || !isAtEnd) return;
    requestAnimationFrame(() => box.scrollTo({ top: box.scrollHeight }));
  });
  return box;
}

function columnMenu(state, column) {
  const add = (made) => {
    state.columns.value = [...state.columns.peek(), made];
  };
  const remove = () => {
    column.abort?.abort();
    state.columns.value = state.columns.peek().filter((other) => other !== column);
  };
  const plain = () => ({ model: column.model.peek(), parameters: column.parameters.peek() });
  return menu(
    null,
    () => [
      [
        "Duplicate column",
        () => add(columnOf({ ...plain(), tail: column.tail.peek() })),
        { iconName: "copy", disabled: state.columns.peek().length >= MOST_COLUMNS },
      ],
      [
        "Save answer as dataset row",
        () => saveAnswer(state, column),
        { iconName: "data", disabled: column.answer.peek()?.state !== "done" },
      ],
      [
        "Clear conversation",
        () => {
          column.tail.value = [];
          column.answer.value = null;
        },
        { iconName: "undo" },
      ],
      ["Remove column", remove, { iconName: "trash", danger: true, disabled: state.columns.peek().length < 2 }],
    ],
    { kind: "quiet", label: "Column menu" },
  );
}

/** What an answer says, as a row keeps it: its text, or its tool calls. */
function answerText(column) {
  const [choice] = choicesOf(column.answer.peek());
  const text = choice?.messages.map(plainText).join("\n\n") ?? "";
  return text || choice?.messages.flatMap(toolCallsOf) || "";
}

/** What was said in this column after the prompt. */
function tailView(state, column) {
  const tail = column.tail.value;
  if (!tail.length) return null;
  const fork = (count) => {
    state.columns.value = [
      ...state.columns.peek(),
      columnOf({ model: column.model.peek(), parameters: column.parameters.peek(), tail: tail.slice(0, count) }),
    ];
  };
  const adopt = (count) => {
    state.messages.value = [...state.messages.peek(), ...tail.slice(0, count).map(draftOf)];
    column.tail.value = tail.slice(count);
  };
  const actions = (count) =>
    menu(
      null,
      () => [
        [
          "Fork into a new column from here",
          () => fork(count),
          { iconName: "copy", disabled: state.columns.peek().length >= MOST_COLUMNS },
        ],
        ["Move up to here into prompt", () => adopt(count), { iconName: "left" }],
        [
          "Delete from here on",
          () => {
            column.tail.value = tail.slice(0, count - 1);
            column.answer.value = null;
          },
          { iconName: "undo", danger: true },
        ],
      ],
      { kind: "quiet", label: "Message menu" },
    );
  const counts = new Map();
  const messages = tail.map((wire, index) => {
    const item = fromOpenai(wire);
    counts.set(item, index + 1);
    return item;
  });
  return messageList(messages, { extraOf: (item) => actions(counts.get(item)) });
}

function answerView(state, column, run) {
  return h("div.answer", { "aria-live": "polite", "aria-busy": () => String(column.answer.value?.state === "running") }, () => {
    const answer = column.answer.value;
    if (!answer)
      return column.tail.value.length
        ? null
        : h("p.hint", "The answer appears here. ",
            h("span.keyhint", h("kbd", "Ctrl"), " ", h("kbd", "↵"), " runs every column."));
    const choices = choicesOf(answer);
    if (answer.state === "failed")
      return [choices.length > 0 && messageList(choices[0].messages), failure(new Error(answer.error), run)];
    if (!choices.length)
      return answer.state === "running"
        ? h("p.hint.waiting", "Waiting for the first token…")
        : h("p.hint", "Stopped before the first token.");
    if (answer.state === "running") return messageList(choices[0].messages.map((item) => ({ ...item, parts: item.parts })));
    const calls = choices.length === 1 ? choices[0].messages.flatMap(toolCallsOf) : [];
    return [
      choices.length > 1
        ? choicesView(choices)
        : calls.length
          ? answered(state, column, choices[0], calls, run)
          : messageList(choices[0].messages, { choice: choices[0] }),
      answer.state === "stopped" && h("p.hint", "Stopped."),
      calls.length ? null : replyBox(column, run),
    ];
  });
}

/** An answer that asks for tools: a field for each result, then on. */
function answered(state, column, choice, calls, run) {
  const results = calls.map(() => signal(""));
  const go = () => {
    const wire = wireChoice(column.answer.peek());
    column.tail.value = [
      ...column.tail.peek(),
      wire,
      ...calls.map((call, index) => ({
        role: "tool",
        tool_call_id: call.id || wire.tool_calls[index].id,
        content: results[index].peek(),
      })),
    ];
    column.answer.value = null;
    run();
  };
  const [item] = choice.messages;
  const answers = new Map(
    calls.map((call, index) => [
      call,
      h(
        "label.toolanswer",
        h("small", "Result"),
        h("textarea", {
          rows: 3,
          dir: "auto",
          "aria-label": `Result of ${call.name}`,
          placeholder: "What the tool returns",
          oninput: (event) => {
            results[index].value = event.target.value;
          },
        }),
      ),
    ]),
  );
  return h(
    "div.messages",
    messageCard(item, { finish: choice.finish_reason, logprobs: choice.logprobs, answers }),
    h(
      "div.actions",
      button("Continue with these results", go, {
        kind: "primary",
        needs: "write",
        disabled: () => results.some((result) => !result.value.trim()),
      }),
    ),
  );
}

/** Going on in this column alone. */
function replyBox(column, run) {
  const text = signal("");
  const send = () => {
    if (!text.peek().trim()) return;
    column.tail.value = [...column.tail.peek(), wireChoice(column.answer.peek()), { role: "user", content: text.peek() }];
    column.answer.value = null;
    run();
  };
  return h(
    "div.reply",
    h("textarea", {
      rows: 1,
      dir: "auto",
      "aria-label": "Reply",
      placeholder: "Reply",
      oninput: (event) => {
        text.value = event.target.value;
      },
    }),
    button("Send", send, { needs: "write", disabled: () => !text.value.trim() }),
  );
}

async function saveAnswer(state, column) {
  const answer = column.answer.peek();
  const saved = await attempt(() => saveRow(state, column, answerText(column)));
  if (saved) column.saved.value = { answer, name: saved.name };
}

/** Where this answer went, or how it gets there. */
function rowState(state, column) {
  const saved = column.saved.value;
  if (saved && saved.answer === column.answer.value) {
    const to = h("a.ref", { href: link(path`/datasets/${saved.name}`) }, saved.name);
    // The button that was pressed is gone: who uses keys goes on from what took its place.
    requestAnimationFrame(() => document.activeElement === document.body && to.focus());
    return h("span.one-line", "Row in ", to);
  }
  if (column.answer.value?.state !== "done") return null;
  return button("Save as row", () => saveAnswer(state, column), { kind: "quiet", iconName: "data", needs: "write" });
}

function footer(state, column) {
  const figures = computed(() => {
    const answer = column.answer.value;
    if (!answer) return [];
    const { first, rate } = speedOf(answer);
    const { prompt_tokens: asked, completion_tokens: told } = answer.usage ?? {};
    return [
      first !== null && ["first token", duration(first)],
      rate !== null && ["tokens/s", rate < 100 ? rate.toFixed(1) : int(Math.round(rate))],
      asked !== undefined && ["tokens", `${compact(asked)} + ${compact(told)}`, `${asked} in, ${told} out`],
      answer.dollars !== null && ["cost", money(answer.dollars)],
    ].filter(Boolean);
  });
  return h(
    "footer",
    () => figures.value.map(([name, value, hint]) => h("span", { title: hint ?? null }, h("b", value), " ", name)),
    h("span.grow"),
    () => rowState(state, column),
    () => {
      const meta = column.answer.value?.meta;
      return meta?.trace_id && column.answer.value.state !== "running"
        ? h("a.ref", { href: link(path`/traces/${meta.trace_id}`, { call: meta.weave_call_id }) }, "Trace")
        : null;
    },
  );
}
