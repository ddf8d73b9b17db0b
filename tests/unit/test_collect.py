"""Blobs that nothing names any more are removed; young and named ones stay."""

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from heddle import settings
from heddle.errors import Unavailable
from heddle.store import base
from heddle.store.control.files import files
from heddle.store.sqlite import store as sqlite_store
from heddle.store.sqlite.database import DATABASE
from heddle.wire.calls import End, Start


def age(store: sqlite_store.SqliteStore, key: str, folder: Path) -> None:
    """Make a blob two hours old."""
    path = next(folder.glob(f"files/{key[:2]}/*{key[4:]}*"))
    os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 7200))


def test_only_old_blobs_without_a_name_go(tmp_path: Path) -> None:
    async def run() -> None:
        store = await sqlite_store.open_store(settings.load({"data": str(tmp_path)}, {}))
        try:
            orphan, young, filed, called = (store.blobs.put_bytes(text) for text in (b"a", b"b", b"c", b"d"))
            await store.files.create("p", "name", "digest", 1, filed)
            start = Start("p", "id", "trace", "op", 1, "{}", "{}", "user", files={"inputs": called})
            await store.calls.write([start], [End("p", "id", 2, None, "{}", 0)])
            for key in (orphan, filed, called):
                age(store, key, tmp_path)
            assert await store.collect_files() == 1
            assert [store.blobs.exists(key) for key in (orphan, young, filed, called)] == [False, True, True, True]
            assert await store.calls.purge_older("p", 5) == 1
            assert await store.collect_files() == 1
            assert not store.blobs.exists(called)
        finally:
            await store.close()

    asyncio.run(run())


def test_content_that_comes_again_is_young_again(tmp_path: Path) -> None:
    async def run() -> None:
        store = await sqlite_store.open_store(settings.load({"data": str(tmp_path)}, {}))
        try:
            key = store.blobs.put_bytes(b"again")
            age(store, key, tmp_path)
            assert store.blobs.put_bytes(b"again") == key
            assert await store.collect_files() == 0
            assert store.blobs.read(key) == b"again"
        finally:
            await store.close()

    asyncio.run(run())


def test_a_purge_waits_until_what_somebody_may_be_about_to_name_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "SETTLE_SECONDS", 0.5)

    async def run() -> None:
        store = await sqlite_store.open_store(settings.load({"data": str(tmp_path)}, {}))
        try:
            old, young, named = (store.blobs.put_bytes(text) for text in (b"a", b"b", b"c"))
            await store.files.create("p", "name", "digest", 1, named)
            age(store, old, tmp_path)
            assert await store.purge_files() == 2
            assert [store.blobs.exists(key) for key in (old, young, named)] == [False, False, True]
        finally:
            await store.close()

    asyncio.run(run())


def test_compaction_says_when_others_still_read_what_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "_LOG_SECONDS", 0.3)

    async def run() -> None:
        store = await sqlite_store.open_store(settings.load({"data": str(tmp_path)}, {}))
        copy = tmp_path / f"{DATABASE}.before-7"
        copy.write_bytes(b"planted")
        try:
            await store.files.create("p", "planted", "digest", 1, store.blobs.put_bytes(b"a"))
            with closing(sqlite3.connect(tmp_path / DATABASE, isolation_level=None)) as reader:
                reader.execute("BEGIN")
                assert reader.execute("SELECT count(*) FROM files").fetchone() == (1,)
                assert await store.erasure._execute(sa.delete(files)) == 1
                with pytest.raises(Unavailable, match="Other connections still read removed rows"):
                    await store.compact()
                assert not copy.exists()
                reader.execute("COMMIT")
                await store.compact()
            assert all(b"planted" not in path.read_bytes() for path in tmp_path.glob(f"{DATABASE}*"))
        finally:
            await store.close()

    asyncio.run(run())
