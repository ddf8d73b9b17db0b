"""Detectors find what is planted and little else; paths take out values; what is harmless stays as it is."""

import json
import random

import pytest

from benchmarks.redaction import SECRETS, measure
from heddle.errors import InvalidRequest
from heddle.wire import jsontext, redaction
from heddle.wire.redaction import KINDS, MOST_PATHS, RedactionRules, Redactor
from tests.support.selection import with_breadth

ALL = RedactionRules(KINDS)


def test_planted_secrets_are_found() -> None:
    found = measure()
    assert sum(counts["planted"] for counts in found.values()) == SECRETS
    for kind, counts in found.items():
        assert counts["found"] >= 0.99 * counts["planted"], (kind, counts)
        assert counts["wrong"] <= 0.01 * counts["planted"], (kind, counts)


@pytest.mark.parametrize(
    "text",
    [
        '{"created": 1795000000, "at": 1795435506241563, "seconds": 0.123456789012}',
        '{"usage": {"prompt_tokens": 12, "max_tokens": 4096}}',
        '{"ref": "weave:///team/app/object/x:AbCdEfGhIjKlMnOpQrStUvWxYz0123456789abcdefg"}',
        '{"id": "0192f3a4-7b1c-7000-a000-000000000001", "ip": "10.0.0.1:8470"}',
    ],
)
def test_harmless_texts_stay_the_same_object(text: str) -> None:
    assert Redactor(ALL).json(text, "inputs") is text


def test_secrets_behind_escapes_and_in_members_are_found() -> None:
    redactor = Redactor(ALL)
    value = {"text": 'line\n4111 1111 1111 1111\t"ada@example.com"', "Authorization": "Basic YWRhOnNlY3JldA==", "n": 3}
    redacted = json.loads(redactor.json(json.dumps(value), "inputs"))
    assert redacted["text"] == 'line\n[redacted card]\t"[redacted email]"'
    assert redacted["Authorization"] == "[redacted key]" and redacted["n"] == 3
    assert redactor.found == {"card": 1, "email": 1, "key": 1}


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"Authorization": "Basic YWRhOnNlY3JldA=="}, {"Authorization": "[redacted key]"}),
        ({"request.authorization": ["Basic YQ=="]}, {"request.authorization": ["[redacted key]"]}),
        ({"clientSecret": "a", "A_PASSWORD": "b"}, {"clientSecret": "[redacted key]", "A_PASSWORD": "[redacted key]"}),
        ({"curl": "-H 'Authorization: Basic YWRhOnNlY3JldA=='"}, {"curl": "-H 'Authorization: Basic [redacted key]'"}),
        ({"said": "password\n= hunter22"}, {"said": "password\n= [redacted key]"}),
        ({"env": "api_key: sk-0123456789abcdefghij"}, {"env": "api_key: [redacted key]"}),
        ({"said": "authorization: permission denied", "max_tokens": 1}, None),
    ],
)  # fmt: skip
def test_members_with_names_of_secrets_and_what_is_assigned(value: dict[str, object], kept: object) -> None:
    redactor = Redactor(ALL)
    assert json.loads(redactor.json(jsontext.dumps(value), "inputs")) == (kept or value)
    assert redactor.found == ({"key": len(value)} if kept else {})


HEX, MIXED = "0123456789abcdef" * 4, "Ab0" * 20


@pytest.mark.parametrize(
    "key",
    [
        f"sk-or-v1-{HEX}",
        f"gsk_{MIXED}",
        f"xai-{MIXED}",
        f"pplx-{MIXED}",
        f"r8_{MIXED}",
        f"lsv2_pt_{HEX[:32]}_{HEX[:10]}",
        f"tvly-dev-{MIXED[:32]}",
        f"pcsk_{MIXED[:6]}_{MIXED}",
        f"GOCSPX-{MIXED[:28]}",
        f"dapi{HEX[:32]}",
        f"hvs.{MIXED}",
        f"shpat_{HEX[:32]}",
        f"lin_api_{MIXED[:40]}",
        f"sbp_{HEX[:40]}",
        f"nvapi-{MIXED}",
        f"dckr_pat_{MIXED[:27]}",
        f"https://hooks.slack.com/services/T0123456/B0123456/{MIXED[:24]}",
        f"123456789:AA{MIXED[:33]}",
        f"xoxb-123456789012-{MIXED[:24]}",
        f"xapp-1-A012-{MIXED[:24]}",
        f"whsec_{MIXED[:32]}",
        f"sk_live_{MIXED[:24]}",
        f"eyJ{MIXED[:20]}.eyJ{MIXED[:20]}.{MIXED[:20]}",
        f"SG.{MIXED[:22]}.{MIXED[:43]}",
        f"Bearer {MIXED}",
        f"heddle-{HEX}",
        f"AKIA{'A1' * 8}",
        f"AIza{MIXED[:35]}",
        f"github_pat_{MIXED[:22]}_{MIXED}",
        f"ghp_{MIXED[:36]}",
        f"hf_{MIXED[:34]}",
    ],
)
def test_keys_of_services_are_found_beside_harmless_words(key: str) -> None:
    for around in ("it is KEY", '"KEY", and', "KEY\nnext", json.dumps({"env": "KEY task_id=7"})):
        redactor = Redactor(ALL)
        redacted = redactor.text(around.replace("KEY", key))
        assert key.rpartition("/")[2][-16:] not in redacted
        assert redactor.found == {"key": 1}


@pytest.mark.parametrize(
    "text",
    [
        "task_sk_1 disk-usage-of-the-last-day",
        "the key-value pair",
        "hf_hub r8_x npm_config",
        "10:AAPL",
        "passphrase of four words",
    ],
)
def test_words_that_begin_like_keys_stay(text: str) -> None:
    assert Redactor(ALL).text(text) == text


def test_assigned_keys_and_addresses_in_escaped_json_are_found() -> None:
    redactor = Redactor(ALL)
    assert redactor.text("AccountKey=Zm9vYmFyYmF6; passphrase: correct-horse") == (
        "AccountKey=[redacted key]; passphrase: [redacted key]"
    )
    assert redactor.text(r"{\"url\":\"https:\/\/ada:hunter22@db.example\/x\"}") == (
        r"{\"url\":\"https:\/\/ada:[redacted key]@db.example\/x\"}"
    )


def test_addresses_side_by_side_are_found_each() -> None:
    redactor = Redactor(ALL)
    text = f"a@b.co,{'x' * 70}@mail.example.org a@b@c.de @d.de"
    assert redactor.text(text) == f"[redacted email],{'x' * 6}[redacted email] a@[redacted email] @d.de"
    assert redactor.found == {"email": 3}


def test_paths_take_out_values_and_dumps_lose_them_too() -> None:
    redactor = Redactor(RedactionRules((), ("inputs.messages.*.content", "attributes.user.email")))
    inputs = json.dumps({"messages": [{"role": "user", "content": "my flat is small"}], "content": "kept"})
    assert json.loads(redactor.json(inputs, "inputs")) == {
        "messages": [{"role": "user", "content": "[redacted path]"}],
        "content": "kept",
    }
    assert json.loads(redactor.json('{"user.email": "a", "user": {"email": "b"}}', "attributes")) == {
        "user.email": "[redacted path]",
        "user": {"email": "[redacted path]"},
    }
    dump = json.dumps({"attributes": {"gen_ai.prompt": "he said: my flat is small"}})
    assert "flat" not in redactor.json(dump, "otel_dump")
    assert redactor.json(inputs, "output") == inputs


@pytest.mark.parametrize("path", ["inputs", "inputs.", "name.x", ".x", "inputs..x"])
def test_a_path_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequest):
        RedactionRules((), (path,)).check()


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (None, "fields kinds and paths"),
        ({"kinds": []}, "fields kinds and paths"),
        ({"kinds": [], "paths": [], "more": []}, "fields kinds and paths"),
        ({"kinds": "email", "paths": []}, "lists of strings"),
        ({"kinds": [], "paths": [5]}, "lists of strings"),
        ({"kinds": ["mail"], "paths": []}, "Unknown kind 'mail'; expected one of"),
        ({"kinds": [], "paths": ["inputs.x"] * (MOST_PATHS + 1)}, f"At most {MOST_PATHS} paths"),
    ],
)
def test_stored_rules_that_are_none_are_refused(found: object, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        RedactionRules.of_json(found)
    assert RedactionRules.of_json({"kinds": ["email"], "paths": ["inputs.x"]}) == RedactionRules(
        ("email",), ("inputs.x",)
    )


def test_what_stands_at_a_path_is_taken_out_of_other_texts_however_it_is_nested() -> None:
    redactor = Redactor(RedactionRules((), ("inputs.*.who", "inputs.list.*.0")))
    value = {"a": {"who": {"first": "Augusta", "more": ["Byron", 5, None, "no"]}}, "list": [[{"0": "x"}], "text"]}
    changed = json.loads(redactor.json(json.dumps(value), "inputs"))
    assert changed == {"a": {"who": "[redacted path]"}, "list": [[{"0": "[redacted path]"}], "text"]}
    assert redactor.found == {"path": 2}
    assert redactor.text("Augusta, Lady Byron: no") == "[redacted path], Lady [redacted path]: no"


def test_a_host_right_behind_an_address_has_no_name_of_its_own() -> None:
    redactor = Redactor(RedactionRules(("email",)))
    assert redactor.text("ada@example.com@example.org") == "[redacted email]@example.org"


def test_numbers_of_cards_have_their_length_and_their_check() -> None:
    redactor = Redactor(RedactionRules(("card",)))
    for text, kept in (
        ("4111 1111 1111 1111", "[redacted card]"),
        ("4111 1111 1111 1112", "4111 1111 1111 1112"),
        ("4111-1111-1111-1111-0000-0", "4111-1111-1111-1111-0000-0"),
    ):
        assert redactor.text(text) == kept


def test_members_with_names_of_keys_lose_their_texts_only() -> None:
    redactor = Redactor(RedactionRules(("key",)))
    value = {"api_key": ["abcdef", "", 5, None, {"deep": "kept"}]}
    assert json.loads(redactor.json(json.dumps(value), "inputs")) == {
        "api_key": ["[redacted key]", "", 5, None, {"deep": "kept"}]
    }


def entries(*tokens: str, named: bool = False) -> list[dict[str, object]]:
    """Tokens with log-probabilities as an answer has them; with `named` it calls them by their ids."""
    return [
        {"token": f"token_id:{place}" if named else token, "logprob": -0.5, "bytes": list(token.encode())}
        for place, token in enumerate(tokens)
    ]


def test_tokens_that_say_a_secret_together_go_and_others_stay() -> None:
    split = ("Mail", " ada", "@", "example", ".", "com")
    for named in (False, True):
        redactor = Redactor(RedactionRules(("email",)))
        clean = {"logprobs": {"content": entries("Hel", "lo", named=named)}, "token_ids": [0, 1]}
        said = {"logprobs": {"content": entries(*split, named=named)}, "token_ids": [0, 1, 2, 3, 4, 5]}
        text = json.dumps({"choices": [clean, said, {**clean, "prompt_token_ids": [7, 8]}]})
        value = json.loads(redactor.json(text, "output"))
        gone = {"logprobs": {"content": None}, "token_ids": None}
        assert value == {"choices": [clean, gone, {**clean, "prompt_token_ids": None}]}
        assert redactor.found == {"tokens": 3}


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"token_ids": [1, 2], "logprobs": {"content": [{"token": "token_id:1", "logprob": 0}]}},
         {"token_ids": None, "logprobs": {"content": None}}),
        ({"logprobs": {"content": [{"token": "a", "logprob": 0, "bytes": [999]}]}}, {"logprobs": {"content": None}}),
        ({"tokens": ["ada", "@a.", "com"], "token_logprobs": [0, 0, 0], "top_logprobs": None},
         {"tokens": None, "token_logprobs": [0, 0, 0], "top_logprobs": None}),
        ({"model": "m", "prompt": [[1, 2], [3]]}, {"model": "m", "prompt": None}),
        ({"input": [1, 2, 3]}, {"input": [1, 2, 3]}),
    ],
)  # fmt: skip
def test_ids_without_text_are_not_kept(value: object, kept: object) -> None:
    redactor = Redactor(RedactionRules(("email",)))
    assert json.loads(redactor.json(json.dumps(value), "output")) == kept
    told = json.loads(redactor.json(json.dumps({"body": json.dumps(value)}), "output"))
    assert json.loads(told["body"]) == kept, "also where it is a text in a text"
    lines = redactor.content(f"{json.dumps(value)}\n{json.dumps(value)}".encode()).decode().splitlines()
    assert [json.loads(line) for line in lines] == [kept, kept]


PARTS = (
    *("ada@example.org", "@", "a.b@", "+1 415 555 2671", "(415) 555-2671", "4111 1111 1111 1111", "4111-1111"),
    *("sk-0123456789abcdefghijk", "sk-", f"eyJ{MIXED}.eyJ{MIXED}.{MIXED}", "eyJ", "Bearer 0123456789abcdefghijk"),
    *("password: hunter22x", "api_key", " = ", "\n", '"', "\\", "https://ada:hunter22@db.example/x", "://", ".", "-"),
    *("-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----", "MIIEpAIBAAKCAQEA", "-----BEGIN", "é", " "),
    *("12345678:AA" + "b" * 33, "378282246310005", "word"),
)  # fmt: skip


def test_texts_at_paths_that_hold_each_other_leave_nothing_of_themselves() -> None:
    """The shorter one was often taken out first, and what stood behind it in the longer one stayed."""
    redactor = Redactor(RedactionRules((), ("inputs.people.*",)))
    names = [f"{name} of house {name}" for name in ("Ada", "Bob", "Cyd", "Dan", "Eve", "Fay", "Gus", "Hal")]
    people = [name[:length] for name in names for length in (6, 9, len(name))]
    redactor.json(jsontext.dumps({"people": people}), "inputs")
    for name in names:
        assert redactor.text(f"said {name}, and {name[:9]}") == "said [redacted path], and [redacted path]"
        assert redactor.text(name) == "[redacted path]" and redactor.text(name[:5]) == name[:5]


@pytest.mark.parametrize("seed", with_breadth(range(20), keep=5))
def test_slices_of_a_long_text_give_what_the_whole_gives(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    texts = ["".join(chance.choices(PARTS, k=chance.randrange(1, 80))) for _ in range(100)]
    whole, sliced = Redactor(ALL), Redactor(ALL)
    wanted = [whole.text(text) for text in texts]
    monkeypatch.setattr(redaction, "_SLICE", chance.choice((1, 7, 50, 200)))
    monkeypatch.setattr(redaction, "_MARGIN", 400)
    assert [sliced.text(text) for text in texts] == wanted
    assert sliced.found == whole.found != {}


def test_a_long_text_is_searched_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    spans: list[int] = []

    class Counted:
        """A pattern that tells how many characters each search may look at."""

        def search(self, text: str, place: int, end: int | None = None) -> None:
            spans.append((len(text) if end is None else end) - place)

    for name, kind in (("_AT_HOST", "email"), ("_NUMBER", "phone"), ("_PEM", "key")):
        spans.clear()
        with monkeypatch.context() as patched:
            patched.setattr(redaction, name, Counted())
            text = "@ PRIVATE KEY " * 300_000
            assert Redactor(RedactionRules((kind,))).text(text) == text
        assert max(spans) <= redaction._SLICE + redaction._MARGIN
        assert sum(spans) >= len(text)


def test_a_long_name_of_a_member_is_looked_at_where_it_ends() -> None:
    redactor = Redactor(ALL)
    names = ["x" * 1_000_000 + end for end in ("apikey", "encryption_key", "AUTHORIZATION", "keys", "")]
    assert [*redactor.value(dict.fromkeys(names, "hunter22")).values()] == ["[redacted key]"] * 3 + ["hunter22"] * 2
