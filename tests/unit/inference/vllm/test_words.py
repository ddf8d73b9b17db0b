"""Requests in vLLM's words, and its answers as token events."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heddle.inference.engine.base import (
    AdapterRef,
    Constraint,
    EngineStats,
    RepetitionRule,
    RequestRefused,
    Sampling,
    TokenLogprobs,
    TokenRequest,
)
from heddle.inference.engine.vllm.protocol import ProtocolError, Reader, is_streamed, join_lark, make_body
from heddle.inference.engine.vllm.replica import add_metrics, parse_metrics
from heddle.inference.engine.vllm.server import VllmOptions

PLAIN = TokenRequest("r1", (4, 5, 6), Sampling(max_tokens=7, seed=2**64 - 3))
Json = dict[str, Any]


def asked(request: TokenRequest) -> Json:
    """The body of a request; forbidden words are their token ids with blanks between."""
    return dict(json.loads(make_body(request, "base", lambda ids: " " + "-".join(map(str, ids)))))


def with_sampling(**fields: Any) -> TokenRequest:
    """The plain request with other sampling."""
    return replace(PLAIN, sampling=replace(PLAIN.sampling, **fields))


def test_a_plain_request() -> None:
    body = asked(PLAIN)
    assert (body["model"], body["prompt"], body["max_tokens"], body["request_id"]) == ("base", [4, 5, 6], 7, "r1")
    assert body["seed"] == -3
    assert body["stream"] and body["stream_options"] == {"include_usage": True}
    assert body["return_token_ids"] and body["return_tokens_as_token_ids"]
    # Everything is said, because the server would fill gaps from the model's generation_config.
    assert {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty"} < set(body)


def test_a_seed_that_nobody_asked_for_stays_here() -> None:
    assert "seed" not in asked(with_sampling(is_seeded=False))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9}),
        ({"top_k": 3, "min_p": 0.1}, {"top_k": 3, "min_p": 0.1}),
        ({"top_k": 10**300}, {"top_k": 0}),
        ({"frequency_penalty": 1.5, "presence_penalty": -1.0}, {"frequency_penalty": 1.5, "presence_penalty": -1.0}),
        ({"repetition_penalty": 1.1, "min_tokens": 2}, {"repetition_penalty": 1.1, "min_tokens": 2}),
        ({"logit_bias": {5: -100.0}}, {"logit_bias": {"5": -100.0}}),
        ({"allowed_token_ids": (1, 2)}, {"allowed_token_ids": [1, 2]}),
        ({"bad_words": ((1, 2), (3,), (1, 2))}, {"bad_words": ["1-2", "3"]}),
        ({"stop_token_ids": (8,), "ignore_eos": True}, {"stop_token_ids": [8], "ignore_eos": True}),
        ({"logprobs": 0}, {"logprobs": 0}),
        (
            {"repetition": RepetitionRule(3, 1, 10**300)},
            {"repetition_detection": {"max_pattern_size": 3, "min_pattern_size": 1, "min_count": 2**31 - 1}},
        ),
    ],
)
def test_sampling_in_its_words(fields: Json, words: Json) -> None:
    body = asked(with_sampling(**fields))
    assert {name: body[name] for name in words} == words


def test_what_goes_beside_sampling() -> None:
    request = replace(
        PLAIN,
        adapter=AdapterRef("team/p/a@1#0", Path("/x")),
        priority=-4,
        cache_salt="salt",
        xargs={"speed": 2},
        constraint=Constraint('{"grammars": [{"lark_grammar": "start: \\"a\\""}]}'),
    )
    body = asked(request)
    assert (body["model"], body["priority"], body["cache_salt"]) == ("team/p/a@1#0", -4, "salt")
    assert body["vllm_xargs"] == {"speed": 2}
    assert body["structured_outputs"] == {"grammar": 'start: "a"'}


@pytest.mark.parametrize("request_", [with_sampling(prompt_logprobs=0), replace(PLAIN, kv_transfer_params={"a": 1})])
def test_what_is_told_at_the_end_only_is_asked_for_without_a_stream(request_: TokenRequest) -> None:
    assert not is_streamed(request_)
    body = asked(request_)
    assert "stream" not in body and "stream_options" not in body


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (with_sampling(logprobs=0, logprobs_temperature=0.5), "temperature"),
        (replace(with_sampling(ignore_eos=True), constraint=Constraint('{"grammars": []}')), "ignore_eos"),
        (replace(PLAIN, constraint=Constraint('{"grammars": []}', after=(3,))), None),
    ],
)
def test_what_it_cannot_do_is_refused(request_: TokenRequest, param: str | None) -> None:
    with pytest.raises(RequestRefused) as refused:
        asked(request_)
    assert refused.value.param == param


def test_grammars_become_one_text() -> None:
    grammar = {
        "grammars": [
            {"lark_grammar": 'start: "@inner" @inner /@inner/ @last\n'},
            {"name": "inner", "lark_grammar": "start: @last\n"},
            {"name": "last", "lark_grammar": 'start: "@inner"\n'},
        ]
    }
    text = join_lark(json.dumps(grammar))
    main, _, nested = text.partition("\n")
    assert main == 'start: "@inner" other_inner /@inner/ other_last'
    assert nested.count("other_inner: %lark {") == 1 and nested.count("other_last: %lark {") == 2
    assert "@last" not in text


def chunk(**choice: Any) -> bytes:
    """One event of a stream."""
    base = {"index": 0, "text": "", "logprobs": None, "finish_reason": None, "stop_reason": None, "token_ids": []}
    return b"data: " + json.dumps({"choices": [{**base, **choice}]}).encode() + b"\n\n"


USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":2}}}\n\ndata: [DONE]\n\n'
)


def test_a_stream_in_any_pieces() -> None:
    data = (
        b": a comment\n\n" + chunk(token_ids=[7, 8]) + chunk(token_ids=[9], finish_reason="stop", stop_reason=9) + USAGE
    )
    for size in (1, 3, 50, len(data)):
        reader = Reader(with_sampling(stop_token_ids=(9,)), eos=(2,))
        events = [event for start in range(0, len(data), size) if (event := reader.feed(data[start : start + size]))]
        assert [token for event in events for token in event.token_ids] == [7, 8, 9]
        assert (events[-1].finish_reason, events[-1].stop_reason) == ("stop", 9)
        assert events[-1].cached_tokens == 2


def test_an_end_of_sequence_has_no_name() -> None:
    """A second one is to vLLM a stop token, unless the request names it as one."""
    data = chunk(token_ids=[3], finish_reason="stop", stop_reason=3) + USAGE
    unnamed = Reader(PLAIN, eos=(2, 3)).feed(data)
    named = Reader(with_sampling(stop_token_ids=(3,)), eos=(2, 3)).feed(data)
    assert unnamed is not None and unnamed.stop_reason is None
    assert named is not None and named.stop_reason == 3


def test_the_end_comes_without_usage_too() -> None:
    event = Reader(PLAIN, ()).feed(chunk(token_ids=[1], finish_reason="length") + b"data: [DONE]\n\n")
    assert event is not None and (event.finish_reason, event.cached_tokens) == ("length", None)


@pytest.mark.parametrize(
    ("best", "count", "expected"),
    [
        ({"token_id:7": -2.0, "token_id:1": -0.5, "token_id:2": -1.0}, 2, (3, ((1, -0.5), (2, -1.0)))),
        ({"token_id:7": -0.1, "token_id:1": -0.5}, 2, (1, ((7, -0.1), (1, -0.5)))),
        ({"token_id:7": -2.0}, 0, (1, ())),
    ],
)
def test_logprobs(best: dict[str, float], count: int, expected: tuple[int, tuple[tuple[int, float], ...]]) -> None:
    logprobs = {"tokens": ["token_id:7"], "token_logprobs": [best["token_id:7"]], "top_logprobs": [best]}
    event = Reader(with_sampling(logprobs=count), ()).feed(chunk(token_ids=[7], logprobs=logprobs))
    assert event is not None
    assert event.logprobs == (TokenLogprobs(7, best["token_id:7"], *expected),)


def test_logprobs_of_the_prompt() -> None:
    far = {"5": {"logprob": -9.0, "rank": 44}, "8": {"logprob": -0.5, "rank": 1}}
    near = {"6": {"logprob": -0.4, "rank": 1}}
    choice = {
        "token_ids": [7],
        "finish_reason": "length",
        "prompt_token_ids": [4, 5, 6],
        "prompt_logprobs": [None, far, near],
    }
    body = json.dumps({"choices": [choice], "usage": {}, "kv_transfer_params": {"a": 1}}).encode()
    event = Reader(with_sampling(prompt_logprobs=1), ()).whole(body)
    assert event.prompt_logprobs == (
        None,
        TokenLogprobs(5, -9.0, 44, ((8, -0.5),)),
        TokenLogprobs(6, -0.4, 1, ((6, -0.4),)),
    )
    assert event.kv_transfer_params == {"a": 1}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'data: {"error": {"message": "the engine is dead"}}\n\n', "the engine is dead"),
        (b"data: {}\n\n", "no choices"),
        (b"data: no\n\n", "is not JSON"),
        (chunk(finish_reason="abort") + USAGE, "abort"),
    ],
)
def test_what_is_no_answer(data: bytes, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        Reader(PLAIN, ()).feed(data)


def test_figures_of_several_servers_add_up() -> None:
    text = """# HELP vllm:num_requests_running x
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:generation_tokens_total{engine="0",model_name="m"} 1.5e+06
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:iteration_tokens_total_bucket{engine="0",le="8.0",model_name="m"} 4.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="400",num_cpu_blocks="None"} 1.0
process_resident_memory_bytes 1000.0
"""
    stats = EngineStats()
    add_metrics(stats, [parse_metrics(text), parse_metrics(text), {}])
    assert (stats.running, stats.generated_tokens, stats.resident_bytes) == (6, 3_000_000, 2000)
    assert (stats.kv_blocks_total, stats.kv_blocks_used) == (800, 200)


def test_the_command_of_a_server() -> None:
    options = VllmOptions(
        folder=Path("/models/m"),
        model="m",
        command="env CUDA_VISIBLE_DEVICES={replica} /opt/vllm/bin/python -m server",
        arguments="--tensor-parallel-size 2 --seed {replica}",
        max_model_len=100,
        lora_rank=65,
    )
    words = options.command_line(3, 8001)
    assert words[:5] == ["env", "CUDA_VISIBLE_DEVICES=3", "/opt/vllm/bin/python", "-m", "server"]
    assert words[-4:] == ["--tensor-parallel-size", "2", "--seed", "3"]
    for name, value in (("--port", "8001"), ("--max-model-len", "100"), ("--max-lora-rank", "128")):
        assert words[words.index(name) + 1] == value
