// One replay: what changed between the recorded and the new answers, side by side.
import { computed, effect, h, onCleanup, signal, untrack } from "../lib/dom.js";
import { postProject, resource } from "../lib/data.js";
import { attempt, form, menu, toast } from "../lib/dialog.js";
import { int, plural } from "../lib/format.js";
import { empty, facts, stat } from "../lib/panels.js";
import { button, failure, header, loaded, segments, skeleton, timeNode, title } from "../lib/parts.js";
import { go, link, path, query, setQuery } from "../lib/router.js";
import { objectName } from "../lib/scorerkinds.js";
import { scrollWith, windowed } from "../lib/windowed.js";
import { openReplayed, replayRow } from "./replay_rows.js";
import { measures } from "./replay_measures.js";
import { changesOf, replayName, stateOf } from "./replays.js";

const PAGE = 1000;
const MOST = 10_000;
const PAUSE = 1500;
const ROW_HEIGHT = 80;

/** The page of a replay. */
export default function Replay({ replay: id }) {
  title("Replay");
  const state = resource(() => ["/replays/read", { id }]);
  const replay = () => state.data.value?.replay ?? null;
  const isOpen = () => [replay()?.state, replay()?.scoring_state].some((state) => state === "queued" || state === "running");
  const version = signal(0);
  const rows = resource(
    () => ({ id, version: version.value }),
    (_, abort) => loadRows(id, abort),
  );
  const look = () => {
    if (document.hidden || !isOpen()) return;
    state.reload();
    version.value++;
  };
  const timer = setInterval(look, PAUSE);
  onCleanup(() => clearInterval(timer));
  let wasOpen = false;
  effect(() => {
    if (wasOpen && !isOpen())
      untrack(() => {
        version.value = version.peek() + 1;
      });
    wasOpen = isOpen();
  });
  const phase = computed(() => (state.error.value ? "failed" : replay() ? "there" : "waiting"));
  return h(
    "div.page",
    () => head(replay(), state),
    () =>
      phase.value === "failed"
        ? failure(state.error.value, state.reload)
        : phase.value === "waiting"
          ? skeleton()
          : untrack(() => body(replay, rows)),
  );
}

/** All rows, a thousand at a time. */
async function loadRows(id, abort) {
  const rows = [];
  for (let offset = 0; offset < MOST; offset += PAGE) {
    const answer = await postProject("/replays/results", { id, limit: PAGE, offset }, abort);
    rows.push(...answer.rows);
    if (rows.length >= answer.total || !answer.rows.length) break;
  }
  return rows;
}

function head(replay, state) {
  const crumbs = [["Replays", link("/replays")]];
  if (!replay) return header({ crumbs, title: "Replay" });
  const isRunning = ["queued", "running"].includes(replay.state);
  const cancel = async () => {
    await attempt(() => postProject("/replays/cancel", { id: replay.id }), "Stopping the replay; answers so far are kept");
    state.reload();
  };
  return header({
    crumbs,
    title: h("span", { dir: "auto" }, replayName(replay)),
    extra: stateOf(replay),
    actions: [
      stat("Replayed", int(replay.counts.replayed)),
      stat("Failed", int(replay.counts.failed)),
      stat("Skipped", int(replay.counts.skipped)),
      isRunning ? button("Cancel", cancel, { kind: "danger", iconName: "stop", needs: "write" }) : null,
      button("Create dataset", () => makeDataset(replay), { kind: "primary", iconName: "data", needs: "write", disabled: !replay.counts.replayed }),
      menu(
        null,
        [
          ["All its calls", () => go(link("/traces", { call: replay.id })), { iconName: "calls" }],
          ["Evaluation runs", () => go(link("/evaluations")), { iconName: "evaluate" }],
        ],
        { label: "More" },
      ),
    ],
  });
}

async function makeDataset(replay) {
  const made = await form(
    "Create dataset",
    [
      { name: "name", label: "Name", required: true, value: objectName(`${replayName(replay)}-replay`), pattern: "[\\w.\\-]+" },
      { name: "description", label: "Description" },
    ],
    {
      action: "Publish",
      text: `One row for each of ${plural(replay.counts.replayed, "chat")}, with the question, both answers, both scores and both calls. Evaluate or train another model on it.`,
      submit: (values) =>
        postProject("/replays/dataset", { id: replay.id, name: values.name, description: values.description || null }),
    },
  );
  if (!made) return;
  toast(`Dataset ${made.object_id} v${made.version_index}: ${plural(made.rows, "row")}`);
  go(link(path`/datasets/${made.object_id}`));
}

const FILTERS = [
  ["all", "All", () => true],
  ["changed", "Changed", (row) => row.replay && row.original.trace_id !== null && row.replay.answer !== row.original.answer],
  ["failed", "Failed", (row) => row.outcome === "failed"],
  ["skipped", "Skipped", (row) => row.outcome === "skipped"],
];

function body(replay, rows) {
  const all = () => rows.data.value ?? [];
  const filter = () => FILTERS.find(([name]) => name === query("show")) ?? FILTERS[0];
  const shown = computed(() => all().filter(filter()[2]));
  const differs = () => query("diff") !== "0";
  const counted = (name, text, test) =>
    h(
      "span",
      text,
      " ",
      h("small", () => int(all().filter(test).length)),
    );
  const box = windowed({
    rows: () => shown.value,
    height: ROW_HEIGHT,
    key: (row) => row.place,
    overscan: 6,
    attributes: { role: "rowgroup", tabindex: 0, "aria-label": "Rows" },
    make: (item, index) => replayRow({ item, index, differs }),
  });
  const head = h(
    "div.examplehead",
    { role: "rowgroup" },
    h(
      "div.examplerow.head",
      { role: "row" },
      ["#", "Recorded answer", "New answer", "Change"].map((text) => h("span", { role: "columnheader" }, text)),
    ),
  );
  scrollWith(box, head);
  openReplayed(shown, box, differs);
  return h(
    "div.replaypage",
    h(
      "div.replayhead",
      { tabindex: 0, role: "region", "aria-label": "Summary" },
      () => problemsOf(replay()),
      measures(all),
      () =>
        facts([
          ["Changed", changesOf(replay().request) || "nothing"],
          ["Chosen", replay().counts.selected === 1 ? "the newest chat" : `the ${int(replay().counts.selected)} newest chats`],
          ["Started", timeNode(replay().started_at)],
          ["Ended", timeNode(replay().ended_at)],
        ]),
    ),
    h(
      "div.bar-of-tools",
      segments(
        "Rows",
        FILTERS.map(([name, text, test]) => [name, counted(name, text, test)]),
        () => filter()[0],
        (name) => setQuery({ show: name === "all" ? null : name }),
      ),
      h(
        "button.button",
        { type: "button", "aria-pressed": () => String(differs()), onclick: () => setQuery({ diff: differs() ? "0" : null }) },
        "Differences",
      ),
    ),
    h(
      "div.examples.replays",
      { role: "table", "aria-label": "Answers", "aria-rowcount": () => shown.value.length },
      head,
      box,
      loaded(rows, () =>
        shown.value.length
          ? null
          : empty({
              title: all().length ? "No rows here" : "No chats yet",
              text: all().length ? "Choose another filter." : "Rows appear as the chats are answered.",
            }),
      ),
    ),
  );
}

/** What went wrong with the replay, and with the scores of its answers. */
const problemsOf = (replay) =>
  [replay.error, replay.scoring_problem && `Scores are missing: ${replay.scoring_problem}`]
    .filter(Boolean)
    .map((message) => failure({ message, status: 0 }, null));
