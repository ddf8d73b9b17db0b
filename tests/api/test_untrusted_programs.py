"""Grammars, schemas, patterns and templates of requests: what is too much for a process ends that process only."""

import contextlib
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.conftest import Wire
from tests.support.chat import USER, Chat
from tests.support.evaluations import Lab
from tests.support.patience import strain
from tests.support.selection import with_breadth
from tests.support.server import HeddleProcess

Json = dict[str, Any]
PATIENCE = 120.0
LONGEST_STALL = 4.0
"""Far below what the work takes where the server does it itself, far above the noise of a busy machine."""
LINKS = 3000


def rules(head: str, count: int = LINKS) -> str:
    """A grammar of rules that lead on to each other."""
    chain = "\n".join(f'{head}{n}: "k" {head}{n + 1}' for n in range(count))
    return f'start: {head}0\n{chain}\n{head}{count}: "z"'


def ebnf(count: int = LINKS) -> str:
    """The same in the words of llama.cpp."""
    chain = "\n".join(f'r{n} ::= "k" r{n + 1}' for n in range(count))
    return f'root ::= r0\n{chain}\nr{count} ::= "z"'


def definitions(kind: str = "properties", count: int = LINKS // 2) -> Json:
    """A schema whose definitions lead on to each other."""

    def link(n: int) -> Json:
        then = {"$ref": f"#/$defs/a{n + 1}"}
        if kind == "properties":
            return {"type": "object", "properties": {"x": then}, "required": ["x"]}
        return {"type": "array", "items": then, "minItems": 1} if kind == "items" else {"anyOf": [then]}

    defs = {f"a{n}": link(n) for n in range(count)} | {f"a{count}": {"type": "string"}}
    return {"type": "object", "$defs": defs, "properties": {"y": {"$ref": "#/$defs/a0"}}, "required": ["y"]}


def tool(parameters: Json, **fields: Any) -> Json:
    """The only tool of a request."""
    function = {"name": "f", "parameters": parameters, **fields}
    return {"tools": [{"type": "function", "function": function}]}


def tagged(content: Json) -> Json:
    """A structural tag around something."""
    return {"format": {"type": "tag", "begin": "<a>", "content": content, "end": "</a>"}}


CHAINED = {"type": "json_schema", "json_schema": definitions()}
MANY_STATES = ".*" * 16_000
WIDE = "(?i)" + "[\\x00-\\uffff]" * 700
MANY_PROPERTIES = {"type": "object", "properties": {f"p{n}": {"type": "string", "minLength": n} for n in range(20_000)}}
UNION = {"anyOf": [{"properties": {"k": {"const": n}}} for n in range(6000)]}
LARGER_UNION = {"anyOf": [{"type": "object", "properties": {"k": {"const": n}}} for n in range(16_000)]}
BACKTRACKING = "^(a+)+$"
LONG = "a" * 40 + "!"


@pytest.fixture
def chat(server: HeddleProcess) -> Iterator[Chat]:
    with Chat(server.url) as caller:
        yield caller


@pytest.fixture
def lab(wire: Wire) -> Lab:
    return Lab(wire)


def figures(url: str) -> tuple[float, ...]:
    """The server's process, and how many processes of its own it has started for what clients wrote."""
    text = httpx.get(f"{url}/metrics", timeout=60).text
    names = ("process_start_time_seconds", "heddle_bounded_processes_total")
    found = (re.search(rf"^{name} (\S+)$", text, re.MULTILINE) for name in names)
    return tuple(float(one[1]) if one else 0.0 for one in found)


@contextmanager
def served_meanwhile(url: str) -> Iterator[None]:
    """The same process answers `/health` all the time, and never late."""
    before, waits, over = figures(url)[0], list[float](), threading.Event()

    def look() -> None:
        with httpx.Client(timeout=60) as client:
            while not over.is_set():
                began = time.monotonic()
                assert client.get(f"{url}/health").status_code == 200
                waits.append(time.monotonic() - began)
                over.wait(0.02)

    watcher = threading.Thread(target=look)
    watcher.start()
    while not waits and watcher.is_alive():
        time.sleep(0.01)
    try:
        yield
    finally:
        over.set()
        watcher.join()
    assert figures(url)[0] == before, "it is another process now"
    assert waits and max(waits) < LONGEST_STALL * strain(), f"it stood still for {max(waits):.1f} s"


def refused_twice(url: str, ask: Callable[[], httpx.Response], *said: str) -> None:
    """The request is refused in words, and the second time without a process."""
    with served_meanwhile(url):
        answers = [ask()]
        started = figures(url)[1]
        answers.append(ask())
    for answer in answers:
        assert answer.status_code == 400, f"{answer.status_code} {answer.text[:500]}"
        assert all(re.search(text, answer.text) for text in said), answer.text[:500]
    assert figures(url)[1] == started


CHAINS: list[tuple[str, Json, str]] = [
    ("a Lark grammar", {"structured_outputs": {"grammar": rules("r")}}, "structured_outputs.grammar"),
    ("terminals", {"structured_outputs": {"grammar": rules("T")}}, "structured_outputs.grammar"),
    ("EBNF", {"structured_outputs": {"grammar": ebnf()}}, "structured_outputs.grammar"),
    ("a schema", {"structured_outputs": {"json": definitions()}}, "structured_outputs.json"),
    ("items of a schema", {"structured_outputs": {"json": definitions("items")}}, "structured_outputs.json"),
    (
        "a response format",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": definitions()}}},
        "response_format.json_schema.schema",
    ),
    (
        "branches of a response format",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": definitions("anyOf")}}},
        "response_format.json_schema.schema",
    ),
    (
        "a forced tool",
        {**tool(definitions(count=600), strict=True), "tool_choice": "required"},
        "tools.0.function.parameters",
    ),
    ("a strict tool", tool(definitions("items", 500), strict=True), "tools.0.function.parameters"),
    (
        "a grammar in a structural tag",
        {"structured_outputs": {"structural_tag": tagged({"type": "grammar", "grammar": rules("r")})}},
        "structured_outputs.structural_tag",
    ),
    (
        "a schema in a structural tag",
        {"response_format": {"type": "structural_tag", **tagged(CHAINED)}},
        "response_format",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), with_breadth(CHAINS, every=4, are_named=True))
def test_chains_that_overflow_the_compiler_are_refused_by_their_field(chat: Chat, fields: Json, param: str) -> None:
    refused_twice(
        chat.url,
        lambda: chat.ask(**fields),
        re.escape(param),
        "(in a row|follow each other); the limit is|needs more than",
    )


def test_chains_of_ordinary_length_are_served(chat: Chat) -> None:
    text = chat.content(structured_outputs={"grammar": rules("r", 300)}, max_tokens=3)
    assert text and text == "k" * len(text)
    assert chat.content(structured_outputs={"json": definitions(count=100)}, max_tokens=4).startswith("{")


@pytest.mark.parametrize("count", with_breadth([500, 10_000]))
def test_many_choices_are_served(chat: Chat, count: int) -> None:
    choices = [f"{n:05} is a number" for n in range(count)]
    assert any(choice.startswith(chat.content(structured_outputs={"choice": choices})) for choice in choices)


def test_a_union_of_ordinary_size_is_served(chat: Chat) -> None:
    union = {"anyOf": LARGER_UNION["anyOf"][:100]}
    assert chat.content(structured_outputs={"json": union, "whitespace_pattern": "[ \\n]{0,3}"}).startswith("{")


TOO_LARGE: list[tuple[str, Json, str]] = [
    ("choices", {"choice": [str(n) for n in range(10_001)]}, "choice: has 10001 strings; the limit is 10000"),
    ("a long choice", {"choice": ["x" * 300_000]}, "choice: is 300004 bytes long; the limit is 262144"),
    ("whitespace", {"json": True, "whitespace_pattern": MANY_STATES}, "whitespace_pattern: is 32001 bytes long"),
    ("whitespace of text", {"json": True, "whitespace_pattern": "[\\x00-\\xff]" * 9}, "whitespace_pattern: matches"),
]  # fmt: skip


@pytest.mark.parametrize(("outputs", "said"), [case[1:] for case in TOO_LARGE], ids=[case[0] for case in TOO_LARGE])
def test_what_is_too_large_is_refused_by_its_limit(chat: Chat, outputs: Json, said: str) -> None:
    refused_twice(chat.url, lambda: chat.ask(structured_outputs=outputs), re.escape(f"structured_outputs.{said}"))


HEAVY: list[tuple[str, Json, str]] = [
    ("a regex of many states", {"structured_outputs": {"regex": MANY_STATES}}, "structured_outputs.regex"),
    (
        "a pattern of a schema",
        {"structured_outputs": {"json": {"type": "string", "pattern": MANY_STATES}}},
        "structured_outputs.json",
    ),
    (
        "an expression in a grammar",
        {"structured_outputs": {"grammar": f"start: /{MANY_STATES}/"}},
        "structured_outputs.grammar",
    ),
    (
        "a regex in a structural tag",
        {"structured_outputs": {"structural_tag": tagged({"type": "regex", "pattern": MANY_STATES})}},
        "structured_outputs.structural_tag",
    ),
    ("a union of thousands", {"structured_outputs": {"json": UNION}}, "structured_outputs.json"),
    (
        "unions in a structural tag",
        {"structured_outputs": {"structural_tag": tagged({"type": "json_schema", "json_schema": UNION})}},
        "structured_outputs.structural_tag",
    ),
    (
        "a union as the parameters of a tool",
        tool({"anyOf": LARGER_UNION["anyOf"][:11_000]}, strict=True),
        "tools.0.function.parameters",
    ),
    ("parameters of a tool", tool(MANY_PROPERTIES), "tools.0.function.parameters"),
    ("a chat template", {"chat_template": "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3}, "chat template"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "said"), with_breadth(HEAVY, every=3, are_named=True))
def test_what_takes_too_long_is_refused_by_its_field(chat: Chat, fields: Json, said: str) -> None:
    refused_twice(chat.url, lambda: chat.ask(**fields), re.escape(said))


def test_a_repeated_schema_starts_no_process(chat: Chat) -> None:
    schema = {"type": "object", "properties": {"a": {"const": uuid.uuid4().hex}}, "required": ["a"]}
    chat.content(structured_outputs={"json": schema})
    before = figures(chat.url)
    for _ in range(5):
        chat.content(structured_outputs={"json": schema})
    assert figures(chat.url) == before


def test_who_goes_away_leaves_no_work_behind(chat: Chat, server: HeddleProcess) -> None:
    """The place of a caller that gave up is free for the next one at once."""
    patterns = [f"{MANY_STATES}{n}" for n in range(8)]

    def give_up(pattern: str) -> None:
        body = chat.body(structured_outputs={"regex": pattern})
        with contextlib.suppress(httpx.TimeoutException):
            chat.client.post("/v1/chat/completions", json=body, timeout=0.3)

    with served_meanwhile(chat.url):
        givers = [threading.Thread(target=give_up, args=(pattern,)) for pattern in patterns]
        for giver in givers:
            giver.start()
        for giver in givers:
            giver.join()
        assert chat.content(structured_outputs={"choice": [uuid.uuid4().hex]})
    assert "Traceback" not in server.log()


def test_through_the_completions_of_the_trace_routes(wire: Wire) -> None:
    inputs = {"model": "heddle-tiny", "messages": USER, "structured_outputs": {"grammar": rules("r")}}
    with served_meanwhile(str(wire.client.base_url).rstrip("/")):
        answer = wire.client.post("/completions/create", json={"project_id": wire.project, "inputs": inputs})
    assert answer.status_code < 500 and "structured_outputs.grammar" in answer.text, answer.text[:500]


def call(wire: Wire, inputs: Json, output: Any = LONG) -> str:
    """The id of a call that has ended."""
    call_id = str(uuid.uuid4())
    ended = {"id": call_id, "trace_id": call_id, "op_name": "ask", "inputs": inputs, "output": output}
    times = {"started_at": "2026-01-01T00:00:00Z", "ended_at": "2026-01-01T00:00:01Z"}
    rest = {"project_id": wire.project, "attributes": {}, "summary": {}}
    wire.post(f"/v2/{wire.project}/calls/complete", batch=[{**ended, **times, **rest}])
    return call_id


REPLAYED: dict[str, Json] = {
    "response_format": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": definitions()}}
    },
    "tools.0.function.parameters": {**tool(definitions(count=600), strict=True), "tool_choice": "required"},
}


@pytest.mark.parametrize("field", REPLAYED)
def test_a_stored_call_that_is_replayed(server: HeddleProcess, wire: Wire, field: str) -> None:
    inputs = {"model": "heddle-tiny", "messages": USER, "max_tokens": 2}
    call(wire, {**inputs, **REPLAYED[field]})
    with served_meanwhile(server.url):
        replay_id = wire.post("/replays/create", filter={"op_names": ["ask"]}, model="heddle-tiny")["id"]
        replay = waited(lambda: wire.post("/replays/read", id=replay_id)["replay"], lambda it: it["ended_at"])
    (row,) = wire.post("/replays/results", id=replay_id)["rows"]
    assert replay["counts"]["failed"] == 1 and field in str(row["reason"]), (replay, row)


def waited(ask: Callable[[], Any], is_it: Callable[[Any], Any]) -> Any:
    """What is asked for, once it is so."""
    deadline = time.monotonic() + PATIENCE
    while not is_it(found := ask()):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


SCORERS: list[tuple[str, str, Json, str]] = [
    ("a wide pattern", "RegexMatchScorer", {"pattern": WIDE}, "RegexMatchScorer.pattern"),
    ("many properties", "JSONSchemaScorer", {"json_schema": MANY_PROPERTIES}, "JSONSchemaScorer.json_schema"),
    ("a union of thousands", "JSONSchemaScorer", {"json_schema": LARGER_UNION}, "JSONSchemaScorer.json_schema"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "fields", "said"), with_breadth(SCORERS, every=3, are_named=True))
@pytest.mark.parametrize("is_inline", with_breadth([True, False]))
def test_scorers_of_an_evaluation(lab: Lab, kind: str, fields: Json, said: str, is_inline: bool) -> None:
    bases = ["Scorer", "Object", "BaseModel"]
    inline = {"_type": kind, "_class_name": kind, "_bases": bases, "name": "s", **fields}
    scorer: Any = inline if is_inline else lab.scorer(kind, **fields)
    evaluation = lab.evaluation(lab.dataset([{"word": "a", "target": "b"}]), [scorer])
    refs = {"evaluation_ref": evaluation, "model_ref": lab.model("heddle-tiny", max_tokens=2)}
    body = {"project_id": lab.wire.project, **refs}
    url = str(lab.wire.client.base_url).rstrip("/")
    refused_twice(url, lambda: lab.wire.client.post("/evaluations/evaluate_model", json=body), re.escape(said))


@pytest.mark.thorough
def test_rows_whose_pattern_never_ends_fail_with_the_reason(server: HeddleProcess, lab: Lab) -> None:
    scorer = lab.scorer("RegexMatchScorer", pattern=BACKTRACKING)
    call_id = call(lab.wire, {})
    with served_meanwhile(server.url):
        for _ in range(2):
            lab.wire.post("/calls/score", call_ids=[call_id], scorer_refs=[scorer])
            job = lab.jobs_done(PATIENCE)[0]
            assert job["progress"]["failed"] == 1, job
            started = figures(server.url)[1]
    assert figures(server.url)[1] == started
    (failed, *_) = lab.wire.calls(filter={"op_names": [f"weave:///{lab.wire.project}/op/RegexMatchScorer.score:*"]})
    assert "needs more than 2 s or too much memory" in failed["exception"]


@pytest.mark.parametrize(("kind", "fields", "said"), with_breadth(SCORERS, every=3, are_named=True))
def test_scorers_of_calls(lab: Lab, kind: str, fields: Json, said: str) -> None:
    scorer, call_id = lab.scorer(kind, **fields), call(lab.wire, {})
    body = {"project_id": lab.wire.project, "call_ids": [call_id], "scorer_refs": [scorer]}
    url = str(lab.wire.client.base_url).rstrip("/")
    refused_twice(url, lambda: lab.wire.client.post("/calls/score", json=body), re.escape(said))


@pytest.mark.parametrize(("kind", "fields", "said"), with_breadth(SCORERS, every=3, are_named=True))
def test_scorers_of_a_monitor(server: HeddleProcess, lab: Lab, kind: str, fields: Json, said: str) -> None:
    scorer = lab.scorer(kind, **fields)
    with served_meanwhile(server.url):
        lab.publish("watch", "Monitor", ["Object", "BaseModel"], active=True, scorers=[scorer], op_names=["ask"])
        call(lab.wire, {})
        (monitor,) = waited(
            lambda: lab.wire.post("/monitors/query")["monitors"], lambda found: found and found[0]["problem"]
        )
    assert f"{said} needs more than" in monitor["problem"]


NESTED = {"type": "array", "items": {"$ref": "#/$defs/a"}}
ENDLESS_VALUES: list[tuple[str, Json, Any]] = [
    ("pattern", {"type": "string", "pattern": BACKTRACKING}, LONG),
    ("patternProperties", {"patternProperties": {BACKTRACKING: {"type": "null"}}}, {LONG: None}),
    ("repetitions", {"type": "string", "pattern": "((x{1,1000}){1,1000}){1,1000}y"}, "x" * 5000),
    ("branches", {"$defs": {"a": {"anyOf": [NESTED] * 20}}, "$ref": "#/$defs/a"}, [[[[[1]]]]]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "value"), with_breadth(ENDLESS_VALUES, are_named=True))
def test_values_of_annotations(lab: Lab, schema: Json, value: Any) -> None:
    digest = lab.store("quality", {"name": "quality", "field_schema": schema}, "AnnotationSpec")
    ref = f"weave:///{lab.wire.project}/object/quality:{digest}"
    about = {"weave_ref": f"weave:///{lab.wire.project}/call/{uuid.uuid4()}", "annotation_ref": ref}
    body = {"project_id": lab.wire.project, "feedback_type": "wandb.annotation.quality", "payload": {"value": value}}
    url = str(lab.wire.client.base_url).rstrip("/")
    refused_twice(url, lambda: lab.wire.client.post("/feedback/create", json={**body, **about}), r"payload\.value")


@pytest.mark.parametrize("schema", [MANY_PROPERTIES, LARGER_UNION], ids=["many properties", "a union of thousands"])
def test_schemas_of_annotations(lab: Lab, schema: Json) -> None:
    spec = {"name": "quality", "field_schema": schema}
    body = {"project_id": lab.wire.project, "object_id": "q", "val": spec, "builtin_object_class": "AnnotationSpec"}
    url = str(lab.wire.client.base_url).rstrip("/")
    refused_twice(url, lambda: lab.wire.client.post("/obj/create", json={"obj": body}), "field_schema")
