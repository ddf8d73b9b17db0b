"""Which server gets a request."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

from heddle.inference.engine.base import AdapterRef, Sampling, TokenRequest
from heddle.inference.engine.vllm.client import MARGIN, PREFIX_TOKENS, choose_server, preferred, prefix_key

NAMES = [f"server {number}" for number in range(4)]
REQUEST = TokenRequest("r", tuple(range(PREFIX_TOKENS)), Sampling(max_tokens=1, seed=0))


def test_the_same_beginning_goes_to_the_same_server() -> None:
    longer = replace(REQUEST, id="other", prompt=(*REQUEST.prompt, 5, 6, 7))
    assert prefix_key(longer) == prefix_key(REQUEST)
    loads = dict.fromkeys(NAMES, 0.0)
    assert choose_server(prefix_key(longer), loads) == choose_server(prefix_key(REQUEST), loads)


def test_what_shares_no_cache_has_another_key() -> None:
    adapter = AdapterRef("a/b@1", Path("/x"))
    others = [
        replace(REQUEST, prompt=(9, *REQUEST.prompt[1:])),
        replace(REQUEST, prompt=REQUEST.prompt[:-1]),
        replace(REQUEST, cache_salt="salt"),
        replace(REQUEST, adapter=adapter),
        replace(REQUEST, adapter=replace(adapter, id="a/b@2")),
    ]
    assert len({prefix_key(request) for request in [REQUEST, *others]}) == 6


def test_prefixes_spread_and_only_those_of_a_lost_server_move() -> None:
    keys = [prefix_key(replace(REQUEST, prompt=(number,))) for number in range(400)]
    before = [preferred(key, NAMES) for key in keys]
    assert min(Counter(before)[name] for name in NAMES) > 60
    after = [preferred(key, NAMES[1:]) for key in keys]
    assert all(old == new for old, new in zip(before, after, strict=True) if old != NAMES[0])


def test_a_busy_server_gives_way_beyond_the_margin() -> None:
    key = prefix_key(REQUEST)
    first = preferred(key, NAMES)
    loads = dict.fromkeys(NAMES, 0.0)
    assert choose_server(key, loads | {first: MARGIN}) == first
    assert choose_server(key, loads | {first: MARGIN + 1}) != first
    # With much to do everywhere, a quarter more is still no reason to leave the cache.
    busy = dict.fromkeys(NAMES, 40.0)
    assert choose_server(key, busy | {first: 50.0 + MARGIN}) == first
    other = next(name for name in NAMES if name != first)
    assert choose_server(key, busy | {first: 60.0, other: 30.0}) == other
