// The engine, live: running and waiting requests, speed, cache; usage by model and user, and limits.
import { computed, each, h, signal } from "../lib/dom.js";
import { get, live, resource } from "../lib/data.js";
import { bytes, compact, duration, int, percent, plural } from "../lib/format.js";
import { card, codeBlock, empty, facts } from "../lib/panels.js";
import { dot, failure, header, skeleton, title } from "../lib/parts.js";
import { projectId, siteLink } from "../lib/router.js";
import { serverAddress } from "../lib/setup.js";
import { engineCharts, HISTORY_SECONDS } from "./inference_charts.js";
import { limitsCard, usageCard } from "./inference_usage.js";

/** The page of the engine. */
export default function InferencePage() {
  title("Inference");
  const state = signal(/** @type {any} */ (null));
  const first = resource(() => "/_ui/api/inference", get);
  const histories = new Map();
  const version = signal(0);
  const stream = live("/_ui/api/inference/live", (data) => {
    for (const engine of data.engines) remember(histories, engine);
    state.value = data;
    version.value++;
  }, first.reload);
  const data = computed(() => state.value ?? first.data.value);
  const names = computed(() => JSON.stringify(data.value?.engines.map(({ model }) => model) ?? null));
  return h(
    "div.page",
    header({ title: "Inference", extra: badge(data, stream), actions: h("a.button", { href: siteLink("/docs") }, "API") }),
    h(
      "div.scroll",
      { tabindex: 0, role: "region", "aria-label": "Inference" },
      () => (first.error.value && !data.value ? failure(first.error.value, first.reload) : null),
      () => (names.value === "null" ? !first.error.value && skeleton() : names.value === "[]" ? teach(data.peek()) : null),
      () =>
        data.value?.engines
          .filter(({ error }) => error)
          .map(({ error }) => h("div.failure", { role: "alert" }, h("div", h("b", "The engine failed"), h("p", error)))),
      each(
        h("div.whole"),
        () => data.value?.engines ?? [],
        ({ model }) => model,
        (engine, { model }) =>
          engineView(engine, () => {
            version.value;
            return histories.get(model) ?? [];
          }),
      ),
      usageCard(projectId()),
      limitsCard(),
    ),
  );
}

/** Keep what charts need of the last minutes: speeds come from what was counted since the look before. */
function remember(histories, engine) {
  const rows = histories.get(engine.model) ?? [];
  const time = Date.now() / 1000;
  const before = rows.at(-1);
  const passed = before ? time - before.time : 0;
  const speed = (name) => (before && passed > 0 && engine[name] >= before[name] ? (engine[name] - before[name]) / passed : 0);
  rows.push({
    time,
    prompt_tokens: engine.prompt_tokens,
    generated_tokens: engine.generated_tokens,
    read: speed("prompt_tokens"),
    made: speed("generated_tokens"),
    running: engine.running,
    waiting: engine.waiting,
    held: engine.kv_blocks_used,
    kept: engine.kv_blocks_cached,
    step: engine.step_seconds_mean,
  });
  histories.set(
    engine.model,
    rows.filter((row) => row.time > time - HISTORY_SECONDS),
  );
}

const STATES = {
  ready: ["success", "ready"],
  loading: ["running", "loading"],
  idle: ["waiting", "loads on first request"],
  failed: ["failed", "failed"],
};

function badge(data, stream) {
  return h("span.livebadge", { role: "status" }, () => {
    const engine = data.value?.engines[0];
    if (!engine) return null;
    const [shape, text] = STATES[engine.state] ?? ["waiting", engine.state];
    return stream.up.value ? [dot(shape), text] : [dot("waiting"), "reconnecting"];
  });
}

function engineView(engine, history) {
  const value = (make) => () => make(engine.value);
  return h(
    "section.engine",
    { "aria-label": engine.peek().model },
    h(
      "div.enginehead",
      h("h2", h("span.mono", engine.peek().model)),
      value((one) =>
        facts([
          ["Context", plural(one.context, "token")],
          ["Device", one.device],
          ["Numbers", one.dtype],
          ["Threads", one.threads || null],
          ["Memory", one.resident_bytes ? bytes(one.resident_bytes) : null],
          ["Loaded in", one.load_seconds ? duration(one.load_seconds) : null],
          [
            "Adapters loaded",
            one.adapter_count ? h("span", { title: one.adapters.join("\n") }, int(one.adapter_count)) : "none",
          ],
        ]),
      ),
    ),
    h(
      "div.tiles",
      live_("Throughput", (one) => compact(Math.round(one.tokens_per_second)), "tokens/s, last minute"),
      live_(
        "Running",
        (one) => int(one.running),
        (one) => `${int(one.requests)} since the start`,
      ),
      live_(
        "Waiting",
        (one) => int(one.waiting),
        (one) => (one.preemptions ? `${int(one.preemptions)} preempted for memory` : "in the queue"),
      ),
      live_(
        "KV in use",
        (one) => percent(one.kv_use, 0),
        (one) => `${int(one.kv_blocks_used)} of ${plural(one.kv_blocks_total, "block")}`,
      ),
      live_(
        "Prefix hits",
        (one) => percent(one.prefix_hit_rate, 0),
        (one) => `${compact(one.prefix_hit_tokens)} of ${plural(one.prefix_query_tokens, "token", "tokens", compact)}`,
      ),
      live_(
        "Step",
        (one) => (one.step_seconds_mean ? duration(one.step_seconds_mean) : "–"),
        (one) => (one.aborted ? `${plural(one.aborted, "request")} aborted` : plural(one.steps, "step", "steps", compact)),
      ),
    ),
    engineCharts(history),
    value((one) =>
      one.adapters.length
        ? card(
            "Adapters in memory",
            null,
            h(
              "ul.adapters",
              one.adapters.slice(0, 60).map((name) => h("li.mono.one-line", { title: name }, name.replace(/#.*$/, ""))),
            ),
          )
        : null,
    ),
  );

  function live_(label, make, note) {
    return h("div.tile", h("small", label), h("b", value(make)), h("span", typeof note === "function" ? value(note) : note));
  }
}

const sentence = (text) => (text ? `${text.replace(/\.?$/, ".")} ` : "");

function teach(data) {
  return empty({
    title: data?.is_off ? "This server serves no model" : "The model cannot be served",
    text:
      `${sentence(data?.problem)}With a model, chats, training and evaluations need no other service, ` +
      `and its queue, cache and speed appear here.`,
    code: "pip install '.[inference]'\nheddle serve --model heddle-tiny",
    action: [
      h("p", "Then call it with any OpenAI client:"),
      codeBlock(
        `curl ${serverAddress()}/v1/chat/completions -H 'content-type: application/json' -H 'authorization: Bearer any' \\\n` +
          `  -d '{"model": "heddle-tiny", "messages": [{"role": "user", "content": "hello"}]}'`,
      ),
    ],
  });
}
