"""What goes into an archive comes out of it: equal rows, equal answers, once."""

import asyncio
import io
import math
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from heddle import settings
from heddle.errors import HeddleError
from heddle.paths import open_scratch
from heddle.store.backup import back_up
from heddle.store.blobs.folder import FolderBlobs
from heddle.store.control.project_tables import PROJECT_TABLES, SERVER_TABLES
from heddle.store.control.redaction import Redaction
from heddle.store.control.repository import metadata
from heddle.store.data_folder import DataLock
from heddle.store.integrity import SqliteIntegrity
from heddle.store.open import opened_store
from heddle.store.sqlite.database import DATABASE
from heddle.transfer import export as transfer_export
from heddle.transfer import schema
from heddle.transfer.archive import HEADER, MANIFEST, ArchiveReader, ArchiveWriter, Header
from heddle.transfer.archive_import import Import, RowWriter, import_archive
from heddle.transfer.export import export
from heddle.transfer.renames import Renames
from heddle.transfer.validation import ArchiveCheck
from heddle.wire import refs
from heddle.wire.calls import CallsQuery, End
from heddle.wire.redaction import Redactor
from tests.support.inprocess import running_services
from tests.support.moved import BARE, answers, control_rows, fill_project, fill_tables
from tests.support.selection import with_breadth

PROJECT = "team/source"


def of(data: Path) -> settings.Settings:
    return settings.load({"data": str(data)}, {})


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store that was filled, `source`, and its archive, `moved.heddle`."""
    folder = tmp_path_factory.mktemp("filled")

    async def run() -> None:
        async with running_services(folder / "source") as (services, client):
            await fill_project(client, PROJECT)
            await fill_tables(services.store, folder / "source")
        await export(of(folder / "source"), folder / "moved.heddle", (), False)

    asyncio.run(run())
    return folder


@pytest.fixture
def archive(filled: Path) -> Path:
    return filled / "moved.heddle"


@pytest.fixture
def source(filled: Path, tmp_path: Path) -> Path:
    """A copy of the store of its own."""
    shutil.copytree(filled / "source", tmp_path / "source")
    return tmp_path / "source"


def test_every_table_is_of_projects_or_said_to_be_the_servers() -> None:
    named = [table.table.name for table in PROJECT_TABLES] + [*SERVER_TABLES]
    assert sorted(named) == sorted(metadata.tables)


@pytest.mark.parametrize("as_json", with_breadth([False, True]))
def test_answers_and_rows_are_equal_behind_a_move(tmp_path: Path, source: Path, as_json: bool) -> None:
    archive = tmp_path / "moved.heddle"

    async def run() -> None:
        await export(of(source), archive, (), as_json)
        report = await import_archive(of(tmp_path / "target"), archive, ())
        assert report.new["calls"] == 5 and not report.left_out
        seen = []
        for folder in ("source", "target"):
            async with running_services(tmp_path / folder) as (services, client):
                rows = await control_rows(services.store)
                for moved in schema.EXPORTED:
                    assert rows[moved.table.name], moved.table.name
                seen.append((await answers(client, PROJECT), rows))
        assert seen[0] == seen[1]
        for place in (tmp_path / "source").rglob("weights.bin"):
            moved_to = tmp_path / "target" / place.relative_to(tmp_path / "source")
            assert moved_to.read_bytes() == place.read_bytes()

    asyncio.run(run())


def test_a_second_import_adds_nothing(tmp_path: Path, archive: Path) -> None:
    async def run() -> None:
        first = await import_archive(of(tmp_path / "target"), archive, ())
        second = await import_archive(of(tmp_path / "target"), archive, ())
        assert set(second.new.values()) == {0}
        assert second.known == first.new

    asyncio.run(run())


def test_one_project_moves_alone_and_under_another_name(tmp_path: Path, source: Path) -> None:
    archive = tmp_path / "moved.heddle"

    async def run() -> None:
        await export(of(source), archive, (PROJECT,), False)
        await import_archive(of(tmp_path / "target"), archive, (f"{PROJECT}=team/change",))
        said = {}
        for folder, project in (("source", PROJECT), ("target", "team/change")):
            async with running_services(tmp_path / folder) as (_, client):
                said[folder] = await answers(client, project)
                found = await client.post("/calls/query_stats", json={"project_id": BARE})
                assert found.json()["count"] == 0
        as_target = {path: text.replace("team/source", "team/change") for path, text in said["source"].items()}
        assert as_target == said["target"]

    asyncio.run(run())
    assert SqliteIntegrity(tmp_path / "target" / DATABASE).check_rows(math.inf).problems == []
    with closing(sqlite3.connect(tmp_path / "target" / DATABASE)) as raw:
        assert raw.execute("SELECT count(*) FROM agent_spans WHERE crc IS NOT NULL").fetchone()[0] > 0
    settled = of(tmp_path / "target")
    assert "restored into a temporary folder and checked" in back_up(settled, str(tmp_path / "backup"))


def test_projects_change_names_with_each_other(tmp_path: Path, source: Path, archive: Path) -> None:
    async def run() -> None:
        await import_archive(of(tmp_path / "target"), archive, (f"{PROJECT}={BARE}", f"{BARE}={PROJECT}"))
        async with running_services(source) as (_, client):
            before = await answers(client, PROJECT)
        async with running_services(tmp_path / "target") as (_, client):
            after = await answers(client, BARE)
        before.pop("/calls/query_stats"), after.pop("/calls/query_stats")  # bytes, of a name of another length
        assert after == {path: text.replace(PROJECT, BARE) for path, text in before.items()}

    asyncio.run(run())


def test_refs_and_models_of_a_renamed_project_are_found_in_any_text() -> None:
    renames = Renames({"a/b": 'c/"d"', "c/d": "a/b"})
    text = (
        '["weave:///a/b/object/o:1", "wandb-artifact:///a/b/tuned:step3", "weave:///a/bc/call/1", "weave:///c/d/op/o"]'
    )
    renamed = [
        'weave:///c/"d"/object/o:1',
        'wandb-artifact:///c/"d"/tuned:step3',
        "weave:///a/bc/call/1",
        "weave:///a/b/op/o",
    ]
    assert orjson.loads(renames.text(text)) == renamed


def test_a_running_call_is_ended_by_a_later_archive(tmp_path: Path, source: Path, archive: Path) -> None:
    later = tmp_path / "later.heddle"

    async def run() -> None:
        await import_archive(of(tmp_path / "target"), archive, ())
        async with running_services(source) as (_, client):
            end = {"project_id": PROJECT, "id": "call-2", "ended_at": "2026-01-01T00:02:00Z", "summary": {}}
            await client.post("/call/end", json={"end": {**end, "output": "done"}})
        await export(of(source), later, (), False)
        report = await import_archive(of(tmp_path / "target"), later, ())
        assert (report.new["calls"], report.known["calls"]) == (1, 4)
        async with running_services(tmp_path / "target") as (_, client):
            call = await client.post("/call/read", json={"project_id": PROJECT, "id": "call-2"})
            assert call.json()["call"]["output"] == "done"

    asyncio.run(run())


def test_a_call_that_is_ended_keeps_the_start_of_the_target(tmp_path: Path, source: Path, archive: Path) -> None:
    """A name that was given there was lost."""
    later = tmp_path / "later.heddle"
    read = {"project_id": PROJECT, "id": "call-2"}

    async def run() -> None:
        await import_archive(of(tmp_path / "target"), archive, ())
        async with running_services(tmp_path / "target") as (_, client):
            renamed = await client.post(
                "/call/update", json={"project_id": PROJECT, "call_id": "call-2", "display_name": "own"}
            )
            assert renamed.status_code == 200, renamed.text
            before = (await client.post("/call/read", json=read)).json()["call"]
        async with running_services(source) as (_, client):
            head = {**read, "trace_id": "trace", "op_name": "other", "started_at": "2026-01-01T00:00:09Z"}
            await client.post(
                "/call/start", json={"start": {**head, "attributes": {"of": "source"}, "inputs": {"x": 1}}}
            )
            end = {**read, "ended_at": "2026-01-01T00:02:00Z", "summary": {}, "output": "done"}
            await client.post("/call/end", json={"end": end})
        await export(of(source), later, (), False)
        report = await import_archive(of(tmp_path / "target"), later, ())
        assert (report.new["calls"], report.known["calls"]) == (1, 4)
        async with running_services(tmp_path / "target") as (_, client):
            after = (await client.post("/call/read", json=read)).json()["call"]
        for name in ("display_name", "op_name", "started_at", "inputs", "attributes", "parent_id"):
            assert after[name] == before[name], name
        assert (after["display_name"], after["output"]) == ("own", "done")

    asyncio.run(run())


def test_what_clients_store_during_an_import_stays(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends that waited for their start, or came between the look and the write, were replaced by the archive's."""
    project = refs.internal_project(PROJECT)

    def own(number: int) -> End:
        return End(project, f"call-{number}", 1_800_000_000_000_000, '"own"', "{}", 0)

    async def run() -> None:
        async with opened_store(of(tmp_path / "target")) as store:
            await store.calls.write([], [own(0)])
            note = type(store.redaction).note

            async def note_and_end(self: Redaction, redactors: Mapping[str, Redactor]) -> None:
                await store.calls.write([], [own(1)])
                await note(self, redactors)

            monkeypatch.setattr(type(store.redaction), "note", note_and_end)
            reader = ArchiveReader(archive)
            checked = ArchiveCheck(reader)
            checked.run()
            report = await Import(
                store, of(tmp_path / "target"), Renames.parse([], reader.header.projects), checked.folders
            ).run(reader)
            assert (report.new["calls"], report.known["calls"]) == (5, 0)
            query = CallsQuery(project, columns=frozenset(["output"]))
            found = {row.id: row.output async for rows in store.calls.stream(query) for row in rows}
        assert [found[f"call-{number}"] == '"own"' for number in range(3)] == [True, True, False]

    asyncio.run(run())


def test_files_of_models_and_adapters_that_stay_out_are_removed(tmp_path: Path, archive: Path) -> None:
    """Where the target had a model of the name, nothing pointed to the folders that the archive had brought."""
    target = tmp_path / "target"
    first = asyncio.run(import_archive(of(target), archive, ()))
    with closing(sqlite3.connect(target / DATABASE)) as database, database:
        for table in ("adapters", "train_checkpoints"):
            for (folder,) in database.execute(f"SELECT folder FROM {table}").fetchall():
                (target / folder).rename(target / f"{folder}-own")
            database.execute(f"UPDATE {table} SET folder = folder || '-own'")
        database.execute("UPDATE train_models SET id = 'own ' || id")
        database.execute("UPDATE train_checkpoints SET id = 'own ' || id, model_id = 'own ' || model_id")

    def folders() -> list[Path]:
        return sorted(path for name in schema.FOLDERS for path in (target / name).rglob("*"))

    before = folders()
    again = asyncio.run(import_archive(of(target), archive, ()))
    assert folders() == before
    assert set(again.new.values()) == {0} and again.known == first.new


def test_a_call_that_was_deleted_is_counted_as_there(tmp_path: Path, archive: Path) -> None:
    """It was counted as stored with each import."""

    async def run() -> None:
        await import_archive(of(tmp_path / "target"), archive, ())
        async with running_services(tmp_path / "target") as (_, client):
            body = {"project_id": PROJECT, "call_ids": ["call-1"]}
            assert (await client.post("/calls/delete", json=body)).json() == {"num_deleted": 1}
        report = await import_archive(of(tmp_path / "target"), archive, ())
        assert (report.new["calls"], report.known["calls"]) == (0, 5)

    asyncio.run(run())


def test_a_retention_does_not_come_to_calls_that_are_there(tmp_path: Path, source: Path) -> None:
    """They were removed by the retention of the archive."""
    days = {"project_id": PROJECT, "retention_days": 3}
    found = []

    async def run() -> None:
        async with running_services(source) as (_, client):
            assert (await client.post("/project/ttl_settings/update", json=days)).status_code == 200
        await export(of(source), tmp_path / "again.heddle", [PROJECT], True)
        for target in ("empty", "filled"):
            async with running_services(tmp_path / target) as (_, client):
                if target == "filled":
                    await fill_project(client, PROJECT)
            report = await import_archive(of(tmp_path / target), tmp_path / "again.heddle", ())
            async with running_services(tmp_path / target) as (_, client):
                read = await client.post("/project/ttl_settings/read", json={"project_id": PROJECT})
            found.append((read.json()["retention_days"], report.notes))

    asyncio.run(run())
    assert found == [(3, []), (None, [f"{PROJECT} has calls already and keeps them for ever"])]


def test_what_is_there_stays_as_it_is(tmp_path: Path, archive: Path) -> None:
    """A project that has other versions of the same object keeps its latest, and indexes do not meet."""

    async def run() -> None:
        async with running_services(tmp_path / "target") as (_, client):
            own = {"project_id": PROJECT, "object_id": "refers", "val": {"own": 1}}
            made = (await client.post("/obj/create", json={"obj": own})).json()["digest"]
        await import_archive(of(tmp_path / "target"), archive, ())
        async with running_services(tmp_path / "target") as (_, client):
            asked = {"project_id": PROJECT, "filter": {"object_ids": ["refers"]}}
            found = (await client.post("/objs/query", json=asked)).json()["objs"]
            assert sorted(version["version_index"] for version in found) == [0, 1, 2]
            assert [version["digest"] for version in found if version["is_latest"]] == [made]

    asyncio.run(run())


def rewritten(archive: Path, target: Path, change: "dict[str, bytes | None]") -> Path:
    """A copy of an archive with other contents of some members; None leaves one out."""
    with tarfile.open(archive) as source, tarfile.open(target, "w") as copy:
        for member in source:
            content = change.get(member.name, source.extractfile(member).read())  # type: ignore[union-attr]
            if content is not None:
                member.size = len(content)
                copy.addfile(member, io.BytesIO(content))
    return target


def test_a_newer_format_is_refused_by_name(tmp_path: Path, archive: Path) -> None:
    header = {"format": "heddle archive", "version": 2, "heddle": "9.9", "made_at": "", "projects": []}
    newer = rewritten(archive, tmp_path / "newer", {HEADER: orjson.dumps(header)})
    with pytest.raises(HeddleError, match=r"version 2, written by heddle 9\.9; this heddle reads versions up to 1"):
        asyncio.run(import_archive(of(tmp_path / "target"), newer, ()))
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("kind", ["cut", "changed", "missing", "no manifest", "bad manifest", "blob", "text"])
def test_a_damaged_archive_changes_nothing(tmp_path: Path, archive: Path, kind: str) -> None:
    damaged = tmp_path / "damaged"
    blob = next(name for name, _ in ArchiveReader(archive).members() if name.startswith("blobs/"))
    changes: dict[str, dict[str, bytes | None]] = {
        "changed": {"calls/000001.parquet": b"other"},
        "missing": {"calls/000001.parquet": None},
        "no manifest": {MANIFEST: None},
        "bad manifest": {MANIFEST: b'{"other": 1}'},
        "blob": {blob: b"other"},
    }
    if kind == "cut":
        damaged.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    elif kind == "text":
        damaged.write_text("no archive")
    else:
        rewritten(archive, damaged, changes[kind])
    with pytest.raises(HeddleError, match=r"damaged|incomplete|not a complete archive|not a heddle archive"):
        asyncio.run(import_archive(of(tmp_path / "target"), damaged, ()))
    assert not (tmp_path / "target").exists()


def test_what_a_server_beside_it_collects_is_stored_again(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = RowWriter.write

    async def write_late(self: RowWriter, name: str, rows: list[dict[str, object]]) -> None:
        for blob in (tmp_path / "target" / "files").glob("??/*"):
            blob.unlink()
        await write(self, name, rows)

    monkeypatch.setattr(RowWriter, "write", write_late)
    asyncio.run(import_archive(of(tmp_path / "target"), archive, ()))
    named = {name.removeprefix("blobs/") for name, _ in ArchiveReader(archive).members() if name.startswith("blobs/")}
    assert named and named <= set(FolderBlobs(tmp_path / "target" / "files").keys())


def test_a_folder_in_use_is_refused_and_can_still_be_exported(tmp_path: Path, source: Path, archive: Path) -> None:
    with DataLock(source):
        with pytest.raises(HeddleError, match="in use by another heddle"):
            asyncio.run(import_archive(of(source), archive, ()))
        asyncio.run(export(of(source), tmp_path / "again.heddle", (), False))
    assert ArchiveReader(tmp_path / "again.heddle").verify().counts == ArchiveReader(archive).verify().counts


def test_members_outside_the_data_folder_are_refused(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "evil.heddle", Header("1", "now", [])) as archive:
        archive.file("adapters/../../outside", io.BytesIO(b"x"))
    with pytest.raises(HeddleError, match="not a file of an adapter"):
        asyncio.run(import_archive(of(tmp_path / "target"), tmp_path / "evil.heddle", ()))
    assert not (tmp_path / "outside").exists()


def test_an_export_that_fails_leaves_nothing(tmp_path: Path, source: Path) -> None:
    for blob in (source / "files").glob("??/*"):
        blob.write_bytes(b"rotten")
    with pytest.raises(HeddleError, match="is damaged"):
        asyncio.run(export(of(source), tmp_path / "moved.heddle", (BARE,), False))
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_content_that_is_missing_fails_an_export(tmp_path: Path, source: Path) -> None:
    shutil.rmtree(source / "files")
    with pytest.raises(HeddleError, match="is missing"):
        asyncio.run(export(of(source), tmp_path / "moved.heddle", (BARE,), False))
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_an_export_leaves_out_what_is_purged_meanwhile(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = settings.load({"data": str(tmp_path / "source"), "large_field_bytes": "64KiB"}, {})
    asyncio.run(import_archive(source, archive, ()))
    named = {column.table.name for column in (*schema.BLOB_COLUMNS, *schema.FOLDER_COLUMNS)}
    copy = transfer_export._copy

    def copy_then_purge(database: Path, target: Path) -> None:
        copy(database, target)
        with closing(sqlite3.connect(database)) as live, live:
            for table in (*named, "call_files"):
                live.execute(f"DELETE FROM {table}")
        for folder in ("files", *schema.FOLDERS):
            shutil.rmtree(tmp_path / "source" / folder)

    monkeypatch.setattr(transfer_export, "_copy", copy_then_purge)
    asyncio.run(export(source, tmp_path / "moved.heddle", (), False))
    report = asyncio.run(import_archive(of(tmp_path / "target"), tmp_path / "moved.heddle", ()))
    assert not report.new.keys() & {name.replace("_", " ") for name in (*named, "train_events")}
    assert report.new["train models"] == 3
    assert report.new["calls"] == 3  # of five, two of which have large fields


def test_a_folder_that_two_rows_name_is_in_an_archive_once(tmp_path: Path, source: Path) -> None:
    with closing(sqlite3.connect(source / DATABASE)) as database, database:
        one = "(SELECT min(folder) FROM adapters)"
        database.execute(
            f"UPDATE adapters SET folder = (SELECT min(folder) FROM train_checkpoints) WHERE folder = {one}"
        )
    asyncio.run(export(of(source), tmp_path / "moved.heddle", (), False))
    report = asyncio.run(import_archive(of(tmp_path / "target"), tmp_path / "moved.heddle", ()))
    assert (
        report.new["files of adapters and checkpoints"] + 1 == report.new["adapters"] + report.new["train checkpoints"]
    )


def test_scratch_folders_that_are_opened_at_once_stay(tmp_path: Path) -> None:
    """One took that of another, which was not locked yet, for one that a killed process had left."""

    def write(number: int) -> str:
        with open_scratch(tmp_path / "moved.heddle") as folder:
            (folder / "part").write_text(str(number))
            return (folder / "part").read_text()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(write, range(1000))) == [str(number) for number in range(1000)]
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_export_left_goes_with_the_next(tmp_path: Path, source: Path) -> None:
    """It was a copy of the whole database, and stayed where each export has the date in its name."""
    left = [f".moved.heddle{day}.0123abcd.unfinished" for day in ("", "-monday")]
    others = [".moved.heddle.unfinished", "moved.0123abcd.unfinished"]
    for name in (*left, *others):
        (tmp_path / name).mkdir()
        (tmp_path / name / DATABASE).write_bytes(b"x")
    with open_scratch(tmp_path / "moved.heddle") as at_work, open_scratch(tmp_path / "other") as beside:
        asyncio.run(export(of(source), tmp_path / "moved.heddle", (), False))
        found = {path.name for path in tmp_path.iterdir()}
    assert found == {"source", "moved.heddle", *others, at_work.name, beside.name}


@pytest.mark.parametrize("config", ['{"settings":{"seed":1}}', "[]", "no JSON"])
def test_a_training_job_leaves_without_what_its_key_allowed(config: str) -> None:
    """It names other projects, as that of other jobs does."""
    assert schema.public_part("train_jobs", {"config": config}) == {"config": config}
    told = config.replace("}}", '},"grants":[["other/project",["read"]]]}')
    assert schema.public_part("train_jobs", {"config": told}) == {"config": config}


def test_what_a_killed_import_left_is_written_anew_and_never_exported(tmp_path: Path, archive: Path) -> None:
    code = """if True:
        import asyncio, os, sys
        from pathlib import Path
        from heddle import settings
        from heddle.transfer.archive_import import import_archive

        replace = os.replace
        os.replace = lambda old, new: os._exit(9) if ".import." in str(old) else replace(old, new)
        asyncio.run(import_archive(settings.load({"data": sys.argv[1]}, {}), Path(sys.argv[2]), ()))
    """
    target = tmp_path / "target"
    assert subprocess.run([sys.executable, "-c", code, target, archive], check=False).returncode == 9
    [left] = target.rglob(".import.*")
    asyncio.run(import_archive(of(target), archive, ()))
    assert [*target.rglob(".import.*")] == []
    left.write_bytes(b"half")
    asyncio.run(export(of(target), tmp_path / "again.heddle", (), False))
    names = [{name for name, _ in ArchiveReader(each).members()} for each in (archive, tmp_path / "again.heddle")]
    assert names[0] == names[1]
