"""Chat templates in the sandbox, in this process and in one of their own."""

from collections.abc import Iterator
from typing import Any

import pytest

from heddle.inference.prompt.messages import ChatMessage, template_messages
from heddle.inference.prompt.render import MAX_SOURCE, render
from heddle.inference.prompt.render_process import RenderJob, RenderProcesses, TemplateFailed
from heddle.ipc import bounded

CALL = {"function": {"name": "f", "arguments": '{"a": 1}'}}


@pytest.fixture(scope="module")
def processes() -> Iterator[RenderProcesses]:
    """Child processes that render."""
    started = RenderProcesses()
    yield started
    started.close()


@pytest.fixture(scope="module")
def strict() -> Iterator[RenderProcesses]:
    """The same with little patience."""
    started = RenderProcesses(cpu_seconds=0.2)
    yield started
    started.close()


def text(source: str, *messages: dict[str, Any], **variables: Any) -> str:
    """What a template writes."""
    given = template_messages([ChatMessage.model_validate(message) for message in messages])
    return render(RenderJob(source, given, variables)).text


def failure(source: str, *messages: dict[str, Any], max_chars: int = 1000) -> str:
    """Why a template fails."""
    given = template_messages([ChatMessage.model_validate(message) for message in messages])
    with pytest.raises(TemplateFailed) as caught:
        render(RenderJob(source, given, {}, max_chars))
    return str(caught.value)


def test_json_is_written_for_models_not_for_web_pages() -> None:
    value = {"b": "<é'&>", "a": 1}
    assert text("{{ v | tojson }}", v=value) == '{"b": "<é\'&>", "a": 1}'
    assert text("{{ v | tojson(indent=1, sort_keys=true) }}", v=value) == '{\n "a": 1,\n "b": "<é\'&>"\n}'
    assert text("{{ v | tojson(ensure_ascii=true, separators=(',', ':')) }}", v={"é": 1}) == '{"\\u00e9":1}'


def test_what_templates_expect_to_find() -> None:
    assert text("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert text("{% generation %}{{ v }}{% endgeneration %}!", v="x") == "x!"
    assert text("  {% if true %}\na\n  {% endif %}\nb") == "a\nb"
    assert len(text("{{ strftime_now('%Y-%m-%d') }}")) == 10
    assert failure("{{ raise_exception('roles must ' ~ 'alternate') }}") == "roles must alternate"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for m in messages", "syntax error in line 1"),
        ("a\n{{ b ", "syntax error in line 2"),
        ("{{ a.b.c }}", "'a' is undefined"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested too deeply"),
        ("{{ 1 + '1' }}", "TypeError"),
        ("{% for i in range(2000) %}ab{% endfor %}", "more than 1000 characters"),
        ("{% for i in range(200000) %}{% endfor %}", "OverflowError"),
        ("{# " + "x" * MAX_SOURCE + " #}", "longer than"),
        ("{% include 'other' %}", "no loader"),
    ],
)
def test_whatever_goes_wrong_is_a_failure_with_its_reason(source: str, reason: str) -> None:
    assert reason in failure(source)


def test_the_names_that_a_template_takes_from_outside() -> None:
    source = "{% set y = 1 %}{{ tools }}{{ y }}{% if foo is defined %}{% endif %}{% for m in messages %}{% endfor %}"
    assert render(RenderJob(source, [])).names == {"tools", "foo", "messages"}


USER, PARTS = {"role": "user", "content": "a"}, {"role": "user", "content": ["a", "b"]}


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "aa\nb"),
        ("{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}", "[a][a][b]"),
        ("{% for m in messages %}{% for p in m['content'] %}[{{ p.text }}]{% endfor %}{% endfor %}", "[a][a][b]"),
        (
            "{% for m in messages %}{% set c = m.content %}{% for p in c %}[{{ p.text }}]{% endfor %}{% endfor %}",
            "[a][a][b]",
        ),
        (
            "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
            "{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}",
            "aa\nb",
        ),
    ],
)
def test_content_comes_as_text_or_as_parts_as_the_template_wants(source: str, shown: str) -> None:
    assert text(source, USER, PARTS) == shown


def test_roles_are_renamed_only_for_templates_that_would_drop_them() -> None:
    by_role = "{% for m in messages %}{% if m.role == 'system' %}S{% elif m.role == 'tool' %}T{% endif %}{% endfor %}"
    knows = by_role.replace("'system'", "'developer'").replace("'tool'", "'function'")
    raw = "{% for m in messages %}{{ m.role }} {% endfor %}"
    both = [{"role": "developer", "content": "a"}, {"role": "function", "name": "f", "content": "b"}]
    assert text(by_role, *both) == "ST"
    assert text(knows, *both) == "ST"
    assert text(raw, *both) == "developer function "


def test_arguments_are_objects_or_text_where_a_template_glues_them() -> None:
    message = {"role": "assistant", "tool_calls": [CALL]}
    loop = "{% for m in messages %}{% for c in m.tool_calls %}{{ BODY }}{% endfor %}{% endfor %}"
    assert text(loop.replace("BODY", "c.function.arguments.a"), message) == "1"
    assert text(loop.replace("BODY", "'>' + c.function.arguments"), message) == '>{"a": 1}'


def test_a_child_process_renders_the_same(processes: RenderProcesses) -> None:
    source = "{% for m in messages %}{{ m.content }}|{{ foo | tojson }}{% endfor %}"
    job = RenderJob(source, template_messages([ChatMessage(role="user", content="ä\n\U0001f642")]), {"foo": [1, None]})
    assert processes.render(job) == render(job)
    with pytest.raises(TemplateFailed, match="no way"):
        processes.render(RenderJob("{{ raise_exception('no way') }}", []))
    assert processes.render(job) == render(job)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10000000000 }}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{{ lipsum(n=100000000) }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ ((9 ** 9) ** 99999) | string }}",
    ],
)
def test_a_template_without_bounds_ends_and_the_next_one_renders(strict: RenderProcesses, source: str) -> None:
    with pytest.raises(TemplateFailed):
        strict.render(RenderJob(source, []))
    assert strict.render(RenderJob("fine", [])).text == "fine"


def test_child_processes_know_nothing_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEDDLE_SECRET", "x")
    process = bounded._start(RenderProcesses.__module__)
    try:
        with open(f"/proc/{process.pid}/environ", "rb") as environment:
            assert b"HEDDLE_SECRET" not in environment.read()
    except FileNotFoundError:
        pytest.skip("no /proc on this system")
    finally:
        bounded._end(process)
    assert process.returncode is not None


def test_one_process_is_kept_and_ends_when_closed() -> None:
    started = RenderProcesses()
    for _ in range(3):
        started.render(RenderJob("x", []))
    (process,) = started._processes._idle
    assert process.poll() is None
    started.close()
    assert process.returncode is not None
    assert started._processes._idle == []


def call(name: str, call_id: str | None = None) -> dict[str, Any]:
    """A call of an earlier answer."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": {"a": 1}}}


HISTORY = (
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": "both", "reasoning": "hm", "tool_calls": [call("f", "1"), call("g", "2")]},
    {"role": "tool", "tool_call_id": "2", "content": "of g"},
    {"role": "tool", "tool_call_id": "1", "content": "of f"},
    {"role": "user", "content": "and?"},
)
SINGLE = (
    "{% for message in messages %}{% if message.tool_calls %}"
    "{% if message.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
    "{{ message.content }}({{ message.tool_calls[0].function.name }})"
    "{% else %}{{ message.role }}:{{ message.content }};{% endif %}{% endfor %}"
)


def test_a_template_that_writes_one_call_of_a_message_gets_each_with_its_result() -> None:
    assert text(SINGLE, *HISTORY) == "user:go;both(f)tool:of f;(g)tool:of g;user:and?;"
    unnamed = [{**message, "tool_call_id": None} if message["role"] == "tool" else message for message in HISTORY]
    assert text(SINGLE, *unnamed) == "user:go;both(f)tool:of g;(g)tool:of f;user:and?;"
    assert text(SINGLE, *HISTORY[:2]) == "user:go;both(f)(g)"


def test_thoughts_and_text_before_a_call_are_one_where_the_template_takes_only_one() -> None:
    source = SINGLE.replace("{{ message.content }}(", "{{ message.thinking }}|{{ message.content }}(")
    assert text(source, *HISTORY[:2]) == "user:go;hm\n\nboth|(f)|(g)"
    assert text(source, {**HISTORY[1], "content": None}) == "hm|(f)|(g)"


def test_a_template_that_wants_ids_of_nine_letters_gets_them() -> None:
    source = (
        "{% for message in messages %}{% for call in message.tool_calls or [] %}"
        "{% if call.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}{{ call.id }} {% endfor %}"
        "{% if message.tool_call_id %}{{ message.tool_call_id }} {% endif %}{% endfor %}"
    )
    f, g, of_g, of_f = text(source, *HISTORY).split()
    assert (f, g) == (of_f, of_g) and f != g and len(f) == len(g) == 9
    assert text(source, {"role": "tool", "tool_call_id": "abcDEF123", "content": ""}) == "abcDEF123 "
    assert (
        text(source.replace("9", "8"), {"role": "tool", "tool_call_id": "long enough", "content": ""}) == "long enough "
    )


def test_a_template_that_writes_ids_for_names_gets_them_in_its_form() -> None:
    """As Kimi K2 does."""
    source = (
        "{% for message in messages %}{% for call in message.tool_calls or [] %}{% set tool_call_id = call['id'] %}"
        "<|tool_call_begin|>{{ tool_call_id }}<|tool_call_argument_begin|>{% endfor %}"
        "{% if message.tool_call_id %}{{ message.tool_call_id }};{% endif %}{% endfor %}"
    )
    f, g = ("<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>", "<|tool_call_begin|>functions.g:1")
    assert text(source, *HISTORY) == f"{f}{g}<|tool_call_argument_begin|>functions.g:1;functions.f:0;"
    inline = source.replace("{{ tool_call_id }}", "{{ tool_call['id'] }}").replace("call in", "tool_call in")
    assert text(inline.replace("call['id'] %}", "tool_call['id'] %}"), *HISTORY[:2]).startswith(f)
