"""What failed calls have in common: type, message without what varies, innermost frame."""

import json
from typing import Any

import pytest

from heddle.wire.call_summary import CallError, cost_of, name_of, normalise, problem_of, read_error
from heddle.wire.calls import tokens_of

ALIKE = (
    ("order 17 not found", "order 90321 not found"),
    ("user 'bob-1' has no plan", "user 'al' has no plan"),
    ('key "a b" is unknown', 'key "" is unknown'),
    ("<Foo object at 0x7f12ab> failed", "<Foo object at 0x7f99cd0011> failed"),
    ("cannot open /tmp/x1/data.json", "cannot open /var/lib/y/z.json"),
    (r"C:\Users\a\f.txt is missing", r"D:\b\g.csv is missing"),
    ("file data/run-1/x.json is bad", "file other/run_99/y.csv is bad"),
    ("no answer at 2026-11-23T03:04:05.123Z", "no answer at 2026-01-03 23:04:05"),
    ("expired at Mon, 23 Nov 2026 03:59:00 GMT", "expired at Tue, 3 Dec 2025 13:59:01 GMT"),
    ("closed at 17:05", "closed at 9:59:30.25"),
    ("mail to a@b.com bounced", "mail to foo.bar+1@example.org bounced"),
    ("connection to 10.0.0.1:80 refused", "connection to 192.168.1.77:8080 refused"),
    ("connection to ::1 refused", "connection to fe80::1ff:fe23 refused"),
    ("GET https://a.example/x?y=1 failed", "GET http://localhost:8470/q failed"),
    ("id 3f2504e0-4f89-11d3-9a0c-0305e82c3301 is gone", "id 4a2504e0-4f89-11d3-9a0c-0305e82c3302 is gone"),
    ("request req_011CSHoEabc failed", "request req_99XyZ12ppp failed"),
    ("commit deadbeef01 is bad", "commit 0123456789abcdef is bad"),
    ("None of ['a', 'b'] are columns", "None of ['c', 'd', 'e'] are columns"),
    ("it took 3.25s of 2s", "it took 11s of 1.5s"),
    ("worker-3 died", "worker-12 died"),
)
DIFFERENT = ("can't connect: won't retry", "std::vector failed", "either and/or neither", "Rate limit reached")


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_what_varies_is_left_out(one: str, other: str) -> None:
    assert normalise(one) == normalise(other) != one


@pytest.mark.parametrize("text", DIFFERENT)
def test_words_stay(text: str) -> None:
    assert normalise(text) == text


def test_type_message_and_innermost_frame() -> None:
    frames = [{"filename": f"/app/{name}.py", "line_number": 3, "function_name": name} for name in ("outer", "inner")]
    told = {
        json.dumps({"type": "ValueError", "message": "no: 1", "traceback": frames}): (
            "ValueError",
            "no: 1",
            "inner.py:inner",
        ),
        'Traceback (most recent call last):\n  File "/a/b.py", line 3, in f\n    X\n    ^\nx.y.Odd: two\nlines\n': (
            "Odd",
            "two\nlines",
            "b.py:f",
        ),
        'KeyError: 1\nTraceback (most recent call last):\n  File "/a/b.py", line 3, in f\n    x\nKeyError: 1': (
            "KeyError",
            "1",
            "b.py:f",
        ),
        "TypeError: x is no function\n    at foo (file:///a/b.js:10:5)\n    at bar (/c.js:1:1)": (
            "TypeError",
            "x is no function",
            "b.js:foo",
        ),
        "java.lang.IllegalStateException: shut\n\tat com.foo.Bar.baz(Bar.java:12)": (
            "IllegalStateException",
            "shut",
            "Bar.java:com.foo.Bar.baz",
        ),
        '{"name": "a.b.Odd", "message": 5, "stack": "Odd: 5\\n    at foo (/a/b.js:10:5)"}': ("Odd", "5", "b.js:foo"),
        '{"message": "no frames", "traceback": [], "stack": 5}': ("", "no frames", ""),
        '{"type": "Odd", "message": "m", "traceback": [{}]}': ("Odd", "m", ":"),
        '{"type": "Odd"}': ("", '{"type": "Odd"}', ""),
        "Traceback (most recent call last):\nValueError: cut off": ("ValueError", "cut off", ""),
        "TimeoutError": ("TimeoutError", "", ""),
        "it just failed": ("", "it just failed", ""),
        '{"message"': ("", '{"message"', ""),
    }
    assert {text: read_error(text) for text in told} == {text: CallError(*parts) for text, parts in told.items()}


def test_groups_tell_types_and_places_apart_but_not_lines_and_folders() -> None:
    def group(kind: str, message: str, file: str, line: int, name: str) -> str:
        return read_error(
            f'Traceback (most recent call last):\n  File "{file}", line {line}, in {name}\n    x\n{kind}: {message}'
        ).group

    same = {group("ValueError", f"bad {n}", f"/srv/{n}/app.py", n, "run") for n in range(3)}
    other = {group("KeyError", "bad 1", "app.py", 1, "run"), group("ValueError", "bad 1", "app.py", 1, "stop")}
    assert len(same) == 1 and len(other) == 2 and not same & other


@pytest.mark.parametrize(
    ("word", "kept"),
    [("abc123", "<id>"), ("node12", "node<n>"), ("a1b2", "<id>"), ("worker123", "<id>"), ("v2", "v<n>")],
)
def test_a_word_with_digits_is_an_id_where_it_is_long_or_mixed(word: str, kept: str) -> None:
    assert normalise(f"at {word}") == f"at {kept}"


@pytest.mark.parametrize(
    ("exception", "problem"),
    [
        ('{"type": "ValueError", "message": "no"}', "ValueError: no"),
        ('{"message": "no"}', "no"),
        ('{"type": "ValueError"}', '{"type": "ValueError"}'),
        ("Traceback (most recent call last):\n  File x\nValueError: no\n", "ValueError: no"),
        ("ValueError: no", "ValueError: no"),
        ("", ""),
        ("5", "5"),
        ('{"message": "half \\ud800"}', "half \ufffd"),
        ("[" * 5000, "[" * 5000),
        ('{"a":' * 5000, '{"a":' * 5000),
    ],
)
def test_the_problem_of_a_call_is_the_message(exception: str, problem: str) -> None:
    assert problem_of(exception) == problem


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        (5, 0),
        ([], 0),
        ({"m": 5, "n": {"input_tokens": 2}}, 2),
        ({"m": {"input_tokens": "x", "output_tokens": "7"}}, 7),
        ({"m": {"total_tokens": [], "output_tokens": None}}, 0),
        ({"m": {"total_tokens": 1e308}}, 10**12),
        ({"m": {"total_tokens": float("inf"), "input_tokens": float("nan")}}, 0),
    ],
)
def test_counts_of_tokens_that_are_none_count_nothing(usage: Any, tokens: int) -> None:
    assert tokens_of({"usage": usage}) == tokens


def test_name_tokens_and_cost_of_a_call() -> None:
    call: dict[str, Any] = {"op_name": "weave:///a/b/op/run:v1", "summary": {}}
    assert (name_of(call), tokens_of(call["summary"])) == ("run", 0)
    usage = {"a": {"prompt_tokens": 3, "output_tokens": 4}, "b": {"total_tokens": 5, "input_tokens": 1}, "c": {}}
    call |= {"display_name": "", "summary": {"weave": {"trace_name": "shown"}, "usage": usage}}
    assert (name_of(call), tokens_of(call["summary"])) == ("shown", 12)
    assert name_of(call | {"display_name": "mine"}) == "mine"
    costs = {"a": {"prompt_tokens_total_cost": 0.5, "completion_tokens_total_cost": None}, "b": {}}
    assert [cost_of(each) for each in (costs, {"b": {}}, {}, None)] == [0.5, 0, None, None]


@pytest.mark.parametrize(
    "text", ["'a " * 40_000, "/a" * 50_000, "1.1." * 30_000, "a:" * 50_000, "x" + " \n" * 49_000 + "x"]
)
def test_long_messages_are_read_in_bounded_steps(text: str) -> None:
    assert len(read_error(text).group) == 16
