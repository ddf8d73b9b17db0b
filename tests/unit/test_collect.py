"""Blobs that nothing names any more are removed; young and named ones stay."""

import asyncio
import os
from pathlib import Path

from heddle import settings
from heddle.store.sqlite import store as sqlite_store
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
