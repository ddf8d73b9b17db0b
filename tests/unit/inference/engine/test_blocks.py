"""Accounting of key/value blocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.inference.engine.local.scheduler import BlockPool
from heddle.inference.engine.local.sequence import BLOCK_TOKENS, chain_root, extend_chain


def keys_of(tokens: list[int], adapter: str | None = None, salt: str | None = None) -> list[bytes]:
    keys: list[bytes] = []
    extend_chain(keys, chain_root(adapter, salt), tokens, len(tokens))
    return keys


operations = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 8)),
        st.tuples(st.just("give"), st.integers(0, 5)),
        st.tuples(st.just("save"), st.integers(0, 12)),
        st.tuples(st.just("find"), st.integers(0, 12)),
    ),
    max_size=60,
)


@given(operations, st.integers(1, 12))
def test_blocks_never_leak_and_never_exceed_the_total(work: list[tuple[str, int]], total: int) -> None:
    pool: BlockPool[int] = BlockPool(total)
    held: list[int] = []
    for name, number in work:
        if name == "take":
            fits = number <= total - sum(held)
            assert pool.take(number) is fits
            held += [number] if fits else []
        elif name == "give" and held:
            pool.give_back(held.pop(number % len(held)))
        elif name == "save":
            pool.save(b"%d" % number, lambda number=number: number)
            assert pool.has(b"%d" % number) or pool.available == 0
        elif name == "find":
            assert pool.find([b"%d" % number]) == ([number] if pool.has(b"%d" % number) else [])
        assert pool.used == sum(held)
        assert pool.used + pool.cached <= total
    for blocks in held:
        pool.give_back(blocks)
    assert pool.used == 0


def test_the_least_recently_used_block_makes_room() -> None:
    pool: BlockPool[str] = BlockPool(3)
    for name in "abc":
        pool.save(name.encode(), lambda name=name: name)
    assert pool.find([b"a"]) == ["a"]
    pool.save(b"d", lambda: "d")
    assert [pool.has(name) for name in (b"a", b"b", b"c", b"d")] == [True, False, True, True]
    assert pool.take(2)
    assert [pool.has(name) for name in (b"a", b"c", b"d")] == [False, False, True]


def test_of_a_chain_the_end_goes_first() -> None:
    pool: BlockPool[int] = BlockPool(3)
    keys = keys_of(list(range(3 * BLOCK_TOKENS)))
    for index, key in enumerate(keys):
        pool.save(key, lambda index=index: index)
    assert pool.find(keys) == [0, 1, 2]
    assert pool.take(1)
    assert pool.find(keys) == [0, 1]


def test_a_full_pool_saves_nothing_and_giving_back_too_much_is_an_error() -> None:
    pool: BlockPool[int] = BlockPool(2)
    assert pool.take(2)
    pool.save(b"x", lambda: pytest.fail("copied without room"))
    assert pool.cached == 0
    with pytest.raises(ValueError, match="3 blocks given back, 2 in use"):
        pool.give_back(3)


def test_keys_depend_on_all_tokens_before_and_on_adapter_and_salt() -> None:
    tokens = list(range(40))
    plain = keys_of(tokens)
    assert len(plain) == 2
    assert keys_of([*tokens[:39], 99]) == plain, "an incomplete block has no key"
    assert keys_of([99, *tokens[1:]])[1] != plain[1], "the second key depends on the first block"
    assert keys_of([*tokens[:16], 99, *tokens[17:]])[0] == plain[0]
    others = [keys_of(tokens, adapter, salt) for adapter, salt in (("a@1", None), ("a@2", None), (None, "a@1"))]
    assert len({keys[0] for keys in [plain, *others]}) == 4


@given(st.lists(st.integers(0, 2**31), max_size=100), st.data())
def test_a_chain_that_grows_is_the_chain_of_the_whole(tokens: list[int], data: st.DataObject) -> None:
    keys: list[bytes] = []
    end = 0
    while end < len(tokens):
        end = data.draw(st.integers(end + 1, len(tokens)))
        extend_chain(keys, chain_root(None, None), tokens, end)
        assert len(keys) == end // BLOCK_TOKENS
    assert keys == keys_of(tokens)
