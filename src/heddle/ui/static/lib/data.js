// Talking to the server: the public API, streams of lines and of events, and data that follows an address.
import { computed, effect, onCleanup, signal } from "./dom.js";
import { parseJson, rounded } from "./exactjson.js";
import { config, projectId } from "./router.js";

const ASK_EVERY = 2000;
const ASK_AT_MOST_EVERY = 60_000;

/** An answer that is not 2xx: `status`, `message`, `requestId` (0 and "" where the server was not reached). */
export class ApiError extends Error {
  constructor(message, status = 0, requestId = "") {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.requestId = requestId;
  }
}

/** Whether an error says that a module was not loaded, in the words of any browser. */
export const lacksModule = (error) => /\bimport\w* (a )?module/i.test(error?.message);

/** Whether the server did not answer; it is asked until it does, and what failed is then asked for again. */
export const isAway = signal(false);
let pause = ASK_EVERY;
let backAt = 0;

/** Ask the server until it answers; then `heddle:retry` has what failed asked for again. */
export async function awaitServer() {
  if (isAway.peek()) return;
  isAway.value = true;
  // A request that fails again and again, though the server answers others, is repeated less and less often.
  pause = Date.now() - backAt < 2 * pause ? Math.min(2 * pause, ASK_AT_MOST_EVERY) : ASK_EVERY;
  do await new Promise((resolve) => { setTimeout(resolve, pause); });
  while (!(await fetch(`${config.root}/health`).then((answer) => answer.ok, () => false)));
  isAway.value = false;
  backAt = Date.now();
  dispatchEvent(new Event("heddle:retry"));
}

/** Send a request; raises ApiError. `body` is sent as JSON; the custom header keeps other sites from writing. */
export async function request(method, path, body, signal_) {
  const headers = { "x-heddle-ui": "1" };
  if (body !== undefined) headers["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(config.root + path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal_,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  if (answer?.ok) {
    // No route answers so: a proxy asks for a sign-in, or says in its own words that something is wrong.
    if (answer.headers.get("content-type")?.startsWith("text/html")) throw new ApiError(FOREIGN, answer.status);
    return answer;
  }
  // A proxy answers for a server that is down, in HTML.
  if (!answer || ([502, 503].includes(answer.status) && !isJson(answer))) {
    awaitServer();
    throw new ApiError("The server cannot be reached");
  }
  if (answer.status === 401) dispatchEvent(new Event("heddle:login"));
  throw new ApiError(reasonOf(await textOf(answer), answer), answer.status, answer.headers.get("x-request-id") ?? "");
}

const FOREIGN = "A web page came instead of the server's answer, such as a proxy's sign-in page. Reload this page.";
const BROKEN_OFF = "The connection was lost before the answer was complete";

const isJson = (answer) => answer.headers.get("content-type")?.includes("json");

function reasonOf(text, answer) {
  if (answer.status === 504 && !isJson(answer)) return "The server did not answer in time";
  try {
    const body = JSON.parse(text);
    const reason = body.reason ?? body.error?.message ?? body.message ?? body.detail;
    if (Array.isArray(reason)) return reason.map((item) => `${item.loc?.join(".")}: ${item.msg}`).join("; ");
    return typeof reason === "string" ? reason : JSON.stringify(reason ?? body);
  } catch {
    const isPage = answer.headers.get("content-type")?.startsWith("text/html");
    return (!isPage && text.slice(0, 300)) || `The server answered ${answer.status} ${answer.statusText}`.trim();
  }
}

/** What ends an answer that came in part: what failed is asked for again once the server answers. */
function breakOff(error) {
  if (error.name === "AbortError") throw error;
  awaitServer();
  throw new ApiError(BROKEN_OFF);
}

/** The whole text of an answer; raises ApiError where the connection is lost meanwhile. */
export const textOf = (answer) => answer.text().catch(breakOff);

/** The text of an answer in the parts in which it comes; raises ApiError where the connection is lost meanwhile. */
export async function* partsOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await reader.read().catch(breakOff);
    if (done) return;
    yield value;
  }
}

/** JSON that the server has sent; raises ApiError where its end is missing. */
export function parseSent(text, parse = JSON.parse) {
  try {
    return parse(text);
  } catch {
    return breakOff(new ApiError(BROKEN_OFF));
  }
}

/** The answers with values that are shown, copied or stored again. All others hold figures to reckon with. */
const EXACT = ["/calls/stream_query", "/call/read", "/table/query", "/obj/read"];

function parseAnswer(path, text) {
  if (!EXACT.includes(path)) return parseSent(text);
  const answer = parseSent(text, parseJson);
  const call = answer.call ?? answer;
  if (call.summary) call.summary = rounded(call.summary);
  return answer;
}

/** GET a JSON answer. */
export const get = async (path, abort) => parseSent(await textOf(await request("GET", path, undefined, abort)));

/** POST a body, and the JSON answer. */
export const post = async (path, body, abort) => parseAnswer(path, await textOf(await request("POST", path, body, abort)));

/** The same with the id of the open project in the body, as the trace routes want it. */
export const postProject = (path, body = {}, abort) => post(path, { project_id: projectId(), ...body }, abort);

/**
 * Store a version of an object of the open project; resolves to its digest. `more` may name its `builtin_object_class`, and as
 * `after` the digest that must be the newest until then ("": none may exist), else it fails with the status 409.
 */
export const storeObject = async (name, val, more = {}) =>
  (await postProject("/obj/create", { obj: { project_id: projectId(), object_id: name, val, ...more } })).digest;

/** Any method with a JSON answer (null for an empty one). */
export async function send(method, path, body, abort) {
  const text = await textOf(await request(method, path, body, abort));
  return text ? parseSent(text) : null;
}

/** All objects of a line stream (JSONL), read as they come; `onBatch` gets each batch of new ones. */
export async function lines(path, body, onBatch, abort) {
  const answer = await request("POST", path, { project_id: projectId(), ...body }, abort);
  const all = [];
  const add = (texts) => {
    const batch = texts.filter(Boolean).map((text) => parseAnswer(path, text));
    all.push(...batch);
    if (batch.length) onBatch?.(batch, all);
  };
  let rest = "";
  for await (const part of partsOf(answer)) {
    const texts = (rest + part).split("\n");
    rest = texts.pop();
    add(texts);
  }
  add([rest]);
  return all;
}

/**
 * Data that follows a description of a request: asked for again only when that changes, the request before is
 * given up, and old data stays (dimmed by `busy`) until the new is there.
 * @template T
 * @param {() => any} describe what to ask for, or null for nothing yet: a path to GET, or [path, body] to POST
 *   (with the project id added), or any JSON value when `load` is given
 * @param {(description: any, abort: AbortSignal) => Promise<T>} [load]
 * @returns {{data: import("./dom.js").Signal<T|null>, busy: import("./dom.js").Signal<boolean>,
 *   error: import("./dom.js").Signal<Error|null>, reload: () => void}}
 */
export function resource(describe, load = loadDescribed) {
  const state = { data: signal(null), busy: signal(true), error: signal(null), reload: () => { version.value++; } };
  const version = signal(0);
  const key = computed(() => JSON.stringify(describe() ?? null));
  let current = null;
  let held = "";
  let failed = null;
  effect(() => {
    version.value;
    const asked = key.value;
    const description = JSON.parse(asked);
    current?.abort();
    if (description === null) {
      state.busy.value = false;
      return;
    }
    const mine = (current = new AbortController());
    state.busy.value = true;
    const settle = (data, error) => {
      if (mine !== current || error?.name === "AbortError") return;
      failed = error;
      if (lacksModule(error)) awaitServer();
      if (!error) {
        state.data.value = data;
        held = asked;
      }
      // What is on the page stays while the server is away, which the frame tells.
      state.error.value = error?.status === 0 && held === asked ? null : error;
      state.busy.value = false;
    };
    load(description, mine.signal).then((data) => settle(data, null), (error) => settle(null, error));
  });
  const again = () => ([0, 401].includes(failed?.status) || lacksModule(failed)) && state.reload();
  addEventListener("heddle:retry", again);
  onCleanup(() => {
    current?.abort();
    removeEventListener("heddle:retry", again);
  });
  return state;
}

function loadDescribed(description, abort) {
  return typeof description === "string" ? get(description, abort) : postProject(description[0], description[1], abort);
}

/**
 * Follow server-sent events of a GET address; `on` gets each parsed message, `up` says whether it is connected. Where they
 * are refused (by a proxy while the server is down, or as what they tell of is gone), `onrefused` is called and they are
 * asked for again, less and less often.
 */
export function live(path, on, onrefused = () => {}) {
  const up = signal(false);
  let [source, timer, wait] = [/** @type {EventSource|null} */ (null), 0, ASK_EVERY];
  const connect = () => {
    close();
    const mine = (source = new EventSource(config.root + path));
    mine.onopen = () => {
      up.value = true;
      wait = ASK_EVERY;
    };
    mine.onerror = () => {
      up.value = false;
      if (mine.readyState !== EventSource.CLOSED) return;
      timer = setTimeout(connect, wait);
      wait = Math.min(2 * wait, ASK_AT_MOST_EVERY);
      onrefused();
    };
    mine.onmessage = (event) => on(JSON.parse(event.data), event.lastEventId);
  };
  const close = () => {
    clearTimeout(timer);
    source?.close();
  };
  const again = () => source.readyState === EventSource.CLOSED && connect();
  connect();
  addEventListener("heddle:retry", again);
  onCleanup(() => {
    close();
    removeEventListener("heddle:retry", again);
  });
  return { up, close };
}

/** A value kept in this browser, as a signal; `name` is one word per use. */
export function stored(name, initial) {
  let value = initial;
  try {
    value = parseJson(localStorage.getItem(`heddle.${name}`)) ?? initial;
  } catch {
    // Storage that is switched off or holds something else counts as empty.
  }
  const held = signal(value);
  let first = true;
  effect(() => {
    const text = JSON.stringify(held.value);
    if (first) first = false;
    else {
      try {
        localStorage.setItem(`heddle.${name}`, text);
      } catch {
        // The setting lasts as long as the page, then.
      }
    }
  });
  return held;
}
