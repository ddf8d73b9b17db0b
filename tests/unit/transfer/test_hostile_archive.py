"""Archives that were made to do harm: each is refused, says where, and stores nothing."""

import asyncio
import hashlib
import io
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from heddle import settings
from heddle.errors import HeddleError
from heddle.store.control.repository import metadata, stored_type
from heddle.store.sqlite.database import DATABASE
from heddle.training import files
from heddle.transfer import schema
from heddle.transfer.archive import HEADER, MANIFEST
from heddle.transfer.archive_import import import_archive
from heddle.transfer.validation import checks
from heddle.wire import refs, times
from tests.support.inprocess import running_services

Json = dict[str, Any]
BY_NAME = {moved.table.name: moved for moved in schema.EXPORTED}
OURS, VICTIM = "w/p", "victim/p"
P, V = refs.internal_project(OURS), refs.internal_project(VICTIM)
BLOB = b"content"
FOLDER = "training/one/checkpoints/0001"
KEY = hashlib.sha256(BLOB).hexdigest()


def of(data: Path) -> settings.Settings:
    return settings.load({"data": str(data)}, {})


def row(name: str, **given: Any) -> Json:
    """A record that an export could have written, with some columns as given."""
    found: Json = {}
    for column in BY_NAME[name].columns:
        kind = stored_type(column).python_type
        found[str(column.name)] = "{}" if kind is str else times.now() if column.name.endswith("_at") else kind(1)
    found |= {key: value for key, value in (("project", P), ("project_id", OURS), ("folder", FOLDER)) if key in found}
    found |= {"entity": "w", "project": "p"} if "entity" in found else {}
    found |= {"state": "succeeded"} if "state" in found else {}
    found |= {str(column.name): KEY for column in schema.BLOB_COLUMNS if column.table.name == name}
    found |= {key: "[]" for key, shape in schema.JSON_COLUMNS.get(name, {}).items() if shape.kind is list}
    return {**found, **({"id": "one"} if "id" in found else {}), **given}


MODEL = ("train_models", row("train_models"))
QUEUE = ("annotation_queues", row("annotation_queues"))
JOB = ("train_jobs", row("train_jobs", model_id="one"))


def call(**given: Any) -> Json:
    """A call as a record."""
    texts = dict.fromkeys(("inputs", "attributes", "summary", "output"), "{}")
    named = {"project": P, "id": "c", "trace_id": "t", "op_name": "ask", "started_at": 1, "ended_at": 2}
    empty = dict.fromkeys(("parent_id", "thread_id", "turn_id", "run_id", "display_name", "otel_dump", "exception"))
    steps: Json = {"run_step": None, "run_step_end": None, "user": "u", "status": "success"}
    return {**named, **texts, **empty, **steps, **given}


def build(target: Path, members: dict[str, bytes], change: Callable[[tarfile.TarFile], None] | None = None) -> Path:
    """An archive of members whose header and manifest are right."""
    header = {"format": "heddle archive", "version": 1, "heddle": "1", "made_at": "", "projects": [OURS]}
    told = {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content), "records": 1}
        for name, content in members.items()
        if not name.startswith("blobs/")
    }
    blobs = [content for name, content in members.items() if name.startswith("blobs/")]
    manifest = {"counts": {}, "members": told, "blobs": len(blobs), "blob_bytes": sum(map(len, blobs))}
    with tarfile.open(target, "w") as tar:
        everything = {HEADER: orjson.dumps(header), **members, MANIFEST: orjson.dumps(manifest)}
        for name, content in everything.items():
            if name == MANIFEST and change is not None:
                change(tar)
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return target


def lines(*records: tuple[str, Json]) -> dict[str, bytes]:
    """Members of records, in their order."""
    found: dict[str, bytes] = {}
    for name, record in records:
        group = name if name in ("calls", "table_rows", "table_chunks") else f"records/{name}"
        place = f"{group}/000001.jsonl"
        found[place] = found.get(place, b"") + orjson.dumps(record) + b"\n"
    return found


def with_blob(*records: tuple[str, Json]) -> dict[str, bytes]:
    return {f"blobs/{KEY}": BLOB, **lines(*records)}


CHECKPOINT = row("train_checkpoints", model_id="one")
CHUNK = {"project": P, "digest": "d", "row_count": 2, "chunk": 0, "row_digests": ["a"]}
REFUSED: dict[str, tuple[dict[str, bytes], str]] = {
    "a folder outside": (lines(MODEL, ("train_checkpoints", CHECKPOINT | {"folder": "../victim"})), "column folder"),
    "a folder above": (lines(MODEL, ("train_checkpoints", CHECKPOINT | {"folder": "training/../x"})), "column folder"),
    "an absolute folder": (lines(MODEL, ("train_checkpoints", CHECKPOINT | {"folder": "/etc"})), "column folder"),
    "the root itself": (lines(("adapters", row("adapters", folder="adapters"))), "column folder"),
    "an adapter outside": (lines(("adapters", row("adapters", folder="adapters/../../x"))), "column folder"),
    "a model id that is a path": (lines(("train_models", row("train_models", id="../../x"))), "column id"),
    "a job id that is a path": (with_blob(MODEL, ("train_jobs", JOB[1] | {"id": "a/../b"})), "column id"),
    "a queued evaluation": (lines(("eval_jobs", row("eval_jobs", state="queued"))), "column state"),
    "a running evaluation": (lines(("eval_jobs", row("eval_jobs", state="running"))), "column state"),
    "a queued training job": (with_blob(MODEL, ("train_jobs", JOB[1] | {"state": "queued"})), "column state"),
    "another project's object": (lines(("object_versions", row("object_versions", project=V))), "column project"),
    "another project's job": (lines(("eval_jobs", row("eval_jobs", project_id=VICTIM))), "column project_id"),
    "another project's model": (lines(("train_models", row("train_models", entity="victim"))), "column project"),
    "an adapter of the whole server": (lines(("adapters", row("adapters", entity="", project=""))), "column project"),
    "another project's call": (lines(("calls", call(project=V))), "column project"),
    "another project's row": (lines(("table_rows", {"project": V, "digest": "d", "val": "{}"})), "column project"),
    "a checkpoint of nobody's model": (lines(("train_checkpoints", CHECKPOINT)), "column model_id"),
    "a log of nobody's model": (with_blob(("train_logs", row("train_logs", model_id="x"))), "column model_id"),
    "an item of nobody's queue": (lines(("annotation_queue_items", row("annotation_queue_items"))), "column queue_id"),
    "a content that is not there": (lines(("files", row("files", blob="0" * 64))), "column blob"),
    "a content that is a path": (lines(("files", row("files", blob="../../etc/passwd"))), "column blob"),
    "a text where a number is due": (lines(("costs", row("costs", prompt_token_cost="1"))), "column prompt_token_cost"),
    "a number where a text is due": (lines(("costs", row("costs", llm_id=1))), "column llm_id"),
    "a truth where a number is due": (lines(("files", row("files", size=True))), "column size"),
    "a number beyond 64 bits": (lines(("calls", call(started_at=2**63))), "column started_at"),
    "nothing where something is due": (lines(("calls", call(id=None))), "column id"),
    "a text that is no JSON": (lines(("calls", call(inputs="{"))), "column inputs"),
    "a text that nests": (lines(("calls", call(output="[" * 100_000))), "column output"),
    "a status that is none": (lines(("calls", call(status="fine"))), "column status"),
    "no record": ({"calls/000001.jsonl": b"[]\n"}, "record 1"),
    "no JSON": ({"calls/000001.jsonl": b"{\n"}, "record 1"),
    "a record that nests": ({"calls/000001.jsonl": b'{"id":' + b"[" * 9000 + b"]" * 9000 + b"}\n"}, "record 1"),
    "a record of many values": ({"calls/000001.jsonl": b'{"id":[' + b"1," * 20_000 + b"1]}\n"}, "too many values"),
    "not a Parquet file": ({"calls/000001.parquet": b"PAR1" + b"x" * 99 + b"PAR1"}, "not a Parquet file|damaged"),
    "a table that is cut": (lines(("table_chunks", CHUNK)), "only a part of the table"),
    "two tables at once": (lines(("table_chunks", CHUNK), ("table_chunks", CHUNK | {"digest": "e"})), "only a part"),
    "keys": ({"records/api_keys/000001.jsonl": b"{}\n"}, "does not support"),
    "sessions": ({"records/sessions/000001.jsonl": b"{}\n"}, "does not support"),
    "limits": ({"records/inference_limits/000001.jsonl": b"{}\n"}, "does not support"),
    "another name": ({"../../outside": b"x"}, "does not support"),
    "a file that nothing names": ({"folders/adapters/x/weights": b"x"}, "belongs to no adapter or checkpoint"),
    "a file outside": ({"folders/adapters/../../x": b"x"}, "not a file of an adapter"),
    "a file in the data folder": ({"folders/heddle.db": b"x"}, "not a file of an adapter"),
    "a file with a long name": ({f"folders/{FOLDER}/{'x' * 200}" + "/x" * 400: b"x"}, "not a file of an adapter"),
    "a file that an import began": ({f"folders/{FOLDER}/.import.0123": b"x"}, "not a file of an adapter"),
    "a file below a file": (
        {**lines(MODEL, ("train_checkpoints", CHECKPOINT)), f"folders/{FOLDER}/a": b"", f"folders/{FOLDER}/a/b": b""},
        "is below another file",
    ),
    "a blob with another name": ({"blobs/../../x": b"x"}, "not a SHA-256"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_crafted_archive_is_refused_and_stores_nothing(tmp_path: Path, kind: str) -> None:
    check_refused(tmp_path, *REFUSED[kind])


def test_a_text_of_too_many_values_is_refused_and_stores_nothing(tmp_path: Path) -> None:
    check_refused(tmp_path, lines(("calls", call(output="[" + "[]," * 5_000_001 + "[]]"))), "column output")


def check_refused(tmp_path: Path, members: dict[str, bytes], where: str) -> None:
    """The archive is refused with these words, and nothing lies beside it."""
    with pytest.raises(HeddleError, match=where):
        asyncio.run(import_archive(of(tmp_path / "target"), build(tmp_path / "evil", members), ()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil"]


def test_a_file_whose_folder_is_a_file_in_the_target_is_refused_by_name(tmp_path: Path) -> None:
    asyncio.run(import_archive(of(tmp_path / "target"), build(tmp_path / "empty", {}), ()))
    (tmp_path / "target" / FOLDER).parent.mkdir(parents=True)
    (tmp_path / "target" / FOLDER).write_bytes(b"")
    members = {**lines(MODEL, ("train_checkpoints", CHECKPOINT)), f"folders/{FOLDER}/a": b"x"}
    with pytest.raises(HeddleError, match=f"The file {FOLDER}/a cannot be stored"):
        asyncio.run(import_archive(of(tmp_path / "target"), build(tmp_path / "archive", members), ()))


def test_columns_that_some_records_leave_out_get_their_defaults(tmp_path: Path) -> None:
    """An import that had begun ended with a traceback, or with a refusal of the database."""
    jobs = [row("eval_jobs", id=f"job {number}") for number in range(3)]
    jobs[0]["crashes"] = None
    for name in [name for name, (_, may_miss) in checks("records/eval_jobs").items() if may_miss]:
        jobs[1].pop(name, None)
    archive = build(tmp_path / "archive", lines(*(("eval_jobs", job) for job in jobs)))
    report = asyncio.run(import_archive(of(tmp_path / "target"), archive, ()))
    assert report.new["eval jobs"] == 3
    with closing(sqlite3.connect(tmp_path / "target" / DATABASE)) as database:
        assert database.execute("SELECT crashes FROM eval_jobs ORDER BY id").fetchall() == [(0,), (0,), (1,)]


def link(kind: bytes, target: str, name: str = "folders/adapters/x/weights") -> Callable[[tarfile.TarFile], None]:
    def add(tar: tarfile.TarFile) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, target
        tar.addfile(member)

    return add


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    evil = build(tmp_path / "evil", {}, link(kind, "/etc/passwd"))
    with pytest.raises(HeddleError, match="not a regular file"):
        asyncio.run(import_archive(of(tmp_path / "target"), evil, ()))
    assert not (tmp_path / "target").exists()


def test_sizes_that_are_only_said_are_refused(tmp_path: Path) -> None:
    def huge(tar: tarfile.TarFile) -> None:
        member = tarfile.TarInfo("calls/000009.jsonl")
        member.size = 1 << 40
        assert tar.fileobj is not None
        tar.fileobj.write(member.tobuf(tarfile.GNU_FORMAT))
        tar.offset += tarfile.BLOCKSIZE

    with pytest.raises(HeddleError, match=r"the maximum is|not a complete archive"):
        asyncio.run(import_archive(of(tmp_path / "target"), build(tmp_path / "evil", {}, huge), ()))
    assert not (tmp_path / "target").exists()


def headers(*given: tuple[bytes, bytes]) -> Callable[[tarfile.TarFile], None]:
    """Extended headers, each a type and its content, before a member."""

    def add(tar: tarfile.TarFile) -> None:
        for kind, content in given:
            member = tarfile.TarInfo("header")
            member.type, member.size = kind, len(content)
            tar.addfile(member, io.BytesIO(content))
        tar.addfile(tarfile.TarInfo("calls/000009.jsonl"))

    return add


SPARSE = b"".join(b"%d %s\n" % (len(text) + 4, text) for text in (b"GNU.sparse.major=1", b"GNU.sparse.minor=0"))
EXTENDED: dict[str, tuple[Callable[[tarfile.TarFile], None], str]] = {
    **{
        f"a header of {kind!r} that is large": (headers((kind, b"\0" * (1 << 20))), "a header of 1048576 bytes")
        for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
    },
    "headers in headers": (headers(*[(tarfile.GNUTYPE_LONGNAME, b"x\0")] * 2000), "not a complete archive"),
    "a map that is none": (headers((tarfile.XHDTYPE, b"25 GNU.sparse.map=1,two,3\n")), "not a complete archive"),
    "a sparse file that is none": (
        headers((tarfile.XHDTYPE, SPARSE)),
        "not a complete archive|not a regular file|damaged",
    ),
}


@pytest.mark.parametrize("kind", EXTENDED)
def test_extended_headers_are_bounded(tmp_path: Path, kind: str) -> None:
    add, where = EXTENDED[kind]
    with pytest.raises(HeddleError, match=where):
        asyncio.run(import_archive(of(tmp_path / "target"), build(tmp_path / "evil", {}, add), ()))
    assert not (tmp_path / "target").exists()


def test_a_parquet_that_unpacks_to_much_is_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    sink = io.BytesIO()
    long = "x" * (1 << 20)
    texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 1000, pyarrow.int32()), pyarrow.array([long]))
    rows = pyarrow.table({"project": texts, "val": texts})
    parquet.write_table(rows, sink, compression="zstd")
    assert len(sink.getvalue()) < 1 << 20
    evil = build(tmp_path / "evil", {"table_rows/000001.parquet": sink.getvalue()})
    with pytest.raises(HeddleError, match="exceeds the maximum size of a member when decompressed"):
        asyncio.run(import_archive(of(tmp_path / "target"), evil, ()))
    assert not (tmp_path / "target").exists()


def test_every_column_of_every_record_has_its_type(tmp_path: Path) -> None:
    """A list is what no column of a control table may hold."""
    for moved in schema.EXPORTED:
        name = moved.table.name
        for column in moved.columns:
            if column.name in schema.SECRETS.get(name, ""):
                continue
            given = row(name) | {str(column.name): []}
            with pytest.raises(HeddleError, match=rf"record 1, column {column.name}\b"):
                asyncio.run(import_archive(of(tmp_path / "target"), build(tmp_path / "evil", lines((name, given))), ()))
    assert sorted(metadata.tables) and not (tmp_path / "target").exists()


@pytest.mark.parametrize("at", [times.FIRST - 1, times.LAST + 1])
def test_every_instant_of_every_record_lies_in_the_calendar(tmp_path: Path, at: int) -> None:
    """One that does not took every list away that shows it, such as that of all projects of the server."""
    wrong = [("calls", call(), name) for name in ("started_at", "ended_at")]
    for moved in schema.EXPORTED:
        table = moved.table.name
        for name in [str(column.name) for column in moved.columns]:
            if name.endswith("_at") or name in ("at", "effective_date", "retention_days", "day"):
                wrong.append((table, row(table), name))
    assert len(wrong) > 40
    for table, given, name in wrong:
        evil = build(tmp_path / "evil", lines((table, given | {name: at})))
        with pytest.raises(HeddleError, match=rf"record 1, column {name}: "):
            asyncio.run(import_archive(of(tmp_path / "target"), evil, ()))
    assert not (tmp_path / "target").exists()


def test_json_of_every_column_has_its_shape(tmp_path: Path) -> None:
    """What a reader would take apart: neither a number instead of an object or a list, nor items of another type."""
    for table, columns in schema.JSON_COLUMNS.items():
        for name, shape in columns.items():
            wrong = [] if shape.kind is object else ["7", "null"]
            if shape.items is not object:
                wrong.append("[[]]" if shape.kind is list else '{"a":[]}')
            for text in wrong:
                evil = build(tmp_path / "evil", lines((table, row(table) | {name: text})))
                with pytest.raises(HeddleError, match=rf"record 1, column {name}: .* is not {shape.name}"):
                    asyncio.run(import_archive(of(tmp_path / "target"), evil, ()))
    assert not (tmp_path / "target").exists()


def test_nothing_is_stored_below_what_is_anothers_in_the_target(tmp_path: Path) -> None:
    """The ids of another project's queue, job and model are known to whoever made the archive."""
    victim = [
        ("annotation_queues", row("annotation_queues", project=V)),
        ("train_models", row("train_models", entity="victim")),
        ("train_checkpoints", CHECKPOINT),
    ]
    items = ("annotation_queue_items", row("annotation_queue_items", queue_id="one"))
    stolen = ("adapters", row("adapters", folder=FOLDER))
    event = ("train_events", row("train_events", job_id="one"))
    later = ("train_checkpoints", CHECKPOINT | {"id": "two", "step": 2, "folder": "training/one/checkpoints/0002"})
    job = ("eval_jobs", row("eval_jobs", caller='{"user": "ann", "scopes": ["admin"]}'))
    files = {"folders/training/one/checkpoints/0002/weights": b"evil"}
    given = with_blob(QUEUE, items, MODEL, later, JOB, event, stolen, job) | files
    evil = build(tmp_path / "evil", given)

    async def run() -> None:
        async with running_services(tmp_path / "target") as (services, _):
            for name, record in victim:
                table = BY_NAME[name].table
                await services.store.control.write(lambda c, t=table, r=record: c.execute(t.insert(), [r]).rowcount)
        await import_archive(of(tmp_path / "target"), evil, ())
        async with running_services(tmp_path / "target") as (services, _):
            counts = {}
            for moved in schema.EXPORTED:
                found = await services.store.control.read(
                    lambda c, t=moved.table: [dict(one) for one in c.execute(t.select()).mappings()]
                )
                counts |= {moved.table.name: len(found)} if found else {}
                if moved.table.name == "eval_jobs":
                    assert found[0]["caller"] == {
                        "user": "ann",
                        "scopes": [],
                        "entity": None,
                        "project": OURS,
                        "key_id": None,
                    }
            own = {"annotation_queues": 1, "train_models": 1, "train_checkpoints": 1, "eval_jobs": 1}
            assert counts == own

    asyncio.run(run())
    assert not (tmp_path / "target" / "training").exists()


def test_a_row_that_names_another_place_removes_nothing(tmp_path: Path) -> None:
    """Also where an archive was imported before it was looked at."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("x")
    (tmp_path / "data" / "training").mkdir(parents=True)
    for place in ("../victim", str(victim), "training/../../victim", "training", "files", "", "."):
        files.remove_below(tmp_path / "data", place)
    assert (victim / "file").exists() and (tmp_path / "data" / "training").exists()
    for name in ("../x", "a/b", "..", "", "\0"):
        assert files.model_folder(name).count("/") == 1 and ".." not in files.model_folder(name)
