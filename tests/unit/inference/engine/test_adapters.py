"""Adapter versions in the engine core: mixed batches, prefix reuse, lifetimes."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from heddle.inference.engine.base import AdapterRef, RequestRefused
from tests.unit.inference.engine.conftest import CoreMaker
from tests.unit.inference.engine.helpers import Result, collect, request, run

PROMPT = list(range(40, 90))


def test_mixed_in_one_batch_each_request_has_its_own_adapter(make_core: CoreMaker, adapters: list[Path]) -> None:
    folders = [None, *adapters[:2]]
    alone = [run(make_core(), request(PROMPT, adapter=folder, ignore_eos=True))[0].tokens for folder in folders]
    assert alone[0] != alone[1] != alone[2] != alone[0]
    core = make_core()
    for _ in range(2):
        together = run(core, *(request(PROMPT, adapter=folder, ignore_eos=True) for folder in folders))
        assert [result.tokens for result in together] == alone


def test_versions_share_no_prefix(make_core: CoreMaker, adapters: list[Path]) -> None:
    core = make_core()
    cached = [run(core, request(PROMPT, adapter=folder))[0].cached for folder in (None, adapters[0], None, adapters[0])]
    assert cached == [0, 0, 48, 48]


def test_the_least_recently_used_idle_version_makes_room(make_core: CoreMaker, adapters: list[Path]) -> None:
    core = make_core(max_adapters=2)
    first, second, third = (AdapterRef(folder.name, folder) for folder in adapters)
    core.adapters.load(first)
    core.adapters.load(second)
    core.adapters.load(first)
    core.adapters.load(third)
    assert core.adapters.ids == (first.id, third.id)


def test_a_version_in_use_stays_until_its_last_request_ends(make_core: CoreMaker, adapters: list[Path]) -> None:
    core = make_core(max_adapters=1)
    (alone,) = run(core, request(PROMPT, adapter=adapters[0]))
    results: dict[int, Result] = {}
    core.add(1, request(PROMPT, adapter=adapters[0]))
    collect(results, core)
    core.adapters.load(AdapterRef(adapters[1].name, adapters[1]))
    core.adapters.unload(adapters[0].name)
    assert set(core.adapters.ids) == {adapters[0].name, adapters[1].name}
    while core.has_work:
        collect(results, core)
    assert core.adapters.ids == (adapters[1].name,)
    assert results[1].tokens == alone.tokens
    core.adapters.unload("unknown")
    core.adapters.unload(adapters[1].name)
    assert core.adapters.ids == ()


def test_aborted_and_refused_requests_leave_no_user_behind(make_core: CoreMaker, adapters: list[Path]) -> None:
    core = make_core()
    core.add(1, request(PROMPT, adapter=adapters[0]))
    core.abort(1)
    with pytest.raises(RequestRefused):
        core.add(2, request([999], adapter=adapters[0]))
    core.adapters.unload(adapters[0].name)
    assert core.adapters.ids == ()


def test_a_folder_that_is_no_adapter_is_refused(make_core: CoreMaker, tmp_path: Path) -> None:
    core = make_core()
    with pytest.raises(RequestRefused, match="adapter nothing@1") as caught:
        core.adapters.load(AdapterRef("nothing@1", tmp_path / "nothing"))
    assert caught.value.param == "model"
    with pytest.raises(RequestRefused):
        core.add(1, request(PROMPT, adapter=tmp_path / "nothing"))
    assert not core.has_work
