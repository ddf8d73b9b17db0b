"""Erasure: what a call, trace, thread, user, object or project left here is removed for good, by a durable job."""

import asyncio
import hashlib
from pathlib import Path

import zstandard
from fastapi import Response
from pydantic import Field

from heddle.errors import Conflict, InvalidRequest, NotFound
from heddle.evals.jobs import JobRun, Jobs, JobsDep
from heddle.evals.replay.job import answer_id
from heddle.http.own_bodies import OwnReq
from heddle.http.routing import Admin, ResponseModel, StoreDep, answer, group
from heddle.paths import model_folder
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.control.coordination import ADAPTERS
from heddle.store.control.erasure import IMPORT_JOB, PURGE_JOB, Counts, NamedIn, SubjectKind, tokens_of
from heddle.store.control.eval_jobs import JobRow
from heddle.store.control.project_tables import FoundCalls
from heddle.training import files
from heddle.training.service import Training
from heddle.wire import jsontext, refs
from heddle.wire.batched import batched
from heddle.wire.calls import BODY, CallsQuery
from heddle.wire.jsontypes import Json

router = group("Projects")
_SLICE = 500
_WAIT_SECONDS = 60.0


class PurgeReq(OwnReq):
    """Whom to erase: `id` is the id of a call, trace or thread, a user, or the name of an object or op."""

    subject: SubjectKind
    id: str = Field(default="", max_length=1024)


class PurgeRes(ResponseModel):
    """The job that does it, for /evaluations/jobs/query."""

    job_id: str


@router.post("/project/purge", response_model=PurgeRes)
async def purge_project(body: PurgeReq, caller: Admin, store: StoreDep, jobs: JobsDep) -> Response:
    """Remove a call, trace, thread, user, object or the whole project for good, everywhere; a job does it.

    Calls go with their descendants. Its result is what was removed, by table. It goes on after a restart.
    """
    project = caller.open(body.project_id)
    if (body.subject == "project") == bool(body.id):
        raise InvalidRequest("`id` is required, except for the subject project, which must not have one", param="id")
    job = await jobs.submit(PURGE_JOB, caller, body.project_id, {"subject": body.subject, "id": body.id})
    await store.audit_log.note(caller.user, "purge.request", project, {"subject": body.subject, "job": job.id})
    return answer({"job_id": job.id})


class Purges:
    """Does the jobs."""

    def __init__(self, settings: Settings, store: Store, jobs: Jobs, training: Training) -> None:
        self._data = Path(settings.data)
        self._store = store
        self._jobs = jobs
        self._training = training
        jobs.register(PURGE_JOB, self._purge, is_storing=False)

    async def _purge(self, job: JobRow, run: JobRun) -> Json:
        """Rows first, then the request itself, then what the databases keep of both; each step may be done again."""
        project, counts = refs.internal_project(job.project_id), Counts(job.progress.get("removed", {}))
        if not job.progress.get("removed_all"):
            subject, name = job.body["subject"], job.body["id"]
            if subject == "project":
                await self._project(job, project, run, counts)
            else:
                await self._subject(job, project, run, counts)
            digest = hashlib.sha256(name.encode()).hexdigest()
            done = {"removed": counts, "removed_all": True}
            await self._store.erasure.forget_request(job.id, {"subject": subject, "id_sha256": digest}, done)
            details = {"subject": subject, "job": job.id, "removed": counts}
            await self._store.audit_log.note(run.caller.user, "purge", project, details)
        counts["blobs"] = counts.get("blobs", 0) + await self._store.purge_files()
        await self._store.compact()
        return {"removed": {name: count for name, count in sorted(counts.items()) if count}}

    async def _project(self, job: JobRow, project: str, run: JobRun, counts: Counts) -> None:
        await self._end_jobs(project, await self._store.erasure.open_jobs(project))
        models = [one for one in await self._store.train_models.all() if one.project_id == job.project_id]
        found = {*(model_folder(one.id) for one in models), *await self._store.erasure.folders(project)}
        folders = sorted(found.union(job.progress.get("folders", ())))
        await run.progress({"removed": counts, "folders": folders})
        for model in models:
            _add(counts, "train_checkpoints", await self._training.models.delete(model, run.caller.user))
            _add(counts, "train_models", 1)
        late = await self._store.erasure.adapters(project, counts)
        await self._store.changes.count(ADAPTERS)
        for folder in late.union(folders):
            await asyncio.to_thread(files.remove, self._data / folder)
        _add(counts, "calls", await self._store.calls.purge_project(project))
        _add(counts, "table_rows", await self._store.tables.purge_rows(project, None))
        await run.progress({"removed": counts, "folders": folders})
        late = await self._store.erasure.project(project, counts)
        await self._store.renew_caches([project])
        for folder in late:
            # Of what came since; a checkpoint goes with its model.
            await asyncio.to_thread(files.remove, self._data.joinpath(*Path(folder).parts[:2]))

    async def _subject(self, job: JobRow, project: str, run: JobRun, counts: Counts) -> None:
        """Files, tables and stored responses go with the calls and objects that name them, unless others do, too."""
        subject, name = job.body["subject"], job.body["id"]
        words = set(job.progress.get("words", ()))
        levels, is_named = await self._settle(project, subject, name)
        if subject == "object":
            for text in await self._store.erasure.object_texts(project, name):
                words |= await self._words(project, text)
            words |= await self._rows_words(project, words)
            await run.progress({"removed": counts, "words": sorted(words)})
        else:
            # What is below goes first: what is left after a crash is found from above.
            for part in (part for level in reversed(levels) for part in batched(level, _SLICE)):
                content = await self._store.calls.content(project, part)
                for text in content.texts:
                    words |= await self._words(project, text)
                await run.progress({"removed": counts, "words": sorted(words)})
                await self._store.erasure.calls(FoundCalls(project, part, sorted(content.traces)), counts)
                _add(counts, "calls", await self._store.calls.purge(project, part))
            await self._payloads(project, is_named, counts)
        await self._store.erasure.named(project, subject, name, counts)
        await self._store.renew_caches([project])
        await self._end_jobs(project, await self._mentioning(project, is_named))
        await self._store.erasure.mentions(project, is_named, counts)
        await self._remove_unnamed(project, words, counts)

    async def _settle(self, project: str, subject: str, name: str) -> tuple[list[list[str]], NamedIn]:
        """The calls of a subject and what names it, once the jobs about it have ended, which may have stored more."""
        levels = await self._reach(project, subject, name)
        is_named = NamedIn(set().union(*levels), name)
        open_jobs = await self._mentioning(project, is_named)
        if open_jobs:
            await self._end_jobs(project, open_jobs)
            levels = await self._reach(project, subject, name)
            is_named = NamedIn(set().union(*levels), name)
        return levels, is_named

    async def _reach(self, project: str, subject: str, name: str) -> list[list[str]]:
        """The calls of a subject, then those below these and the copies that scores and replays made, and so on."""
        if subject == "object":
            return []
        level = await self._store.calls.find(project, subject, name)
        found, levels = set(level), [level]
        while levels[-1]:
            below: dict[str, None] = {}
            for part in batched(levels[-1], _SLICE):
                scores, replayed = await self._store.erasure.copies(FoundCalls(project, part, ()))
                below |= dict.fromkeys(await self._store.calls.children(project, part))
                below |= dict.fromkeys([*scores, *(answer_id(*one) for one in replayed)])
            levels.append([one for one in below if one not in found])
            found.update(below)
        return levels

    async def _words(self, project: str, text: str) -> set[str]:
        """What of a text names a file, a table or a stored response, marked with which it is."""
        words = await asyncio.to_thread(tokens_of, text)
        known = await self._store.erasure.known(project, sorted(words)) if words else {}
        return {f"{kind}/{word}" for kind, found in known.items() for word in found}

    async def _rows_words(self, project: str, words: set[str]) -> set[str]:
        """What the rows of tables name, which go with them."""
        tables = _of("tables", words)
        found: set[str] = set()
        rows = sorted(await self._store.erasure.rows_of_tables(project, tables, True)) if tables else []
        for part in batched(rows, _SLICE):
            for text in (await self._store.tables.row_values(project, part)).values():
                found |= await self._words(project, text)
        return found

    async def _remove_unnamed(self, project: str, words: set[str], counts: Counts) -> None:
        """Remove what was named, but for what stands in other calls, objects, rows or feedback of the project."""
        erasure = self._store.erasure
        await erasure.remove_known(project, "responses", _of("responses", words), counts)
        others = {word.partition("/")[2] for word in words if not word.startswith("responses/")}
        if not others:
            return
        query = CallsQuery(project, columns=frozenset(BODY))
        async for calls in self._store.calls.stream(query):
            for call in calls:
                texts = (call.inputs, call.attributes, call.output, call.summary)
                others -= set().union(*(tokens_of(text) for text in texts if text))
            if not others:
                return
        named = await erasure.object_texts(project, None) + await erasure.feedback_texts(project)
        others -= set().union(*map(tokens_of, named))
        tables = [digest for digest in _of("tables", words) if digest in others]
        kept_rows = await erasure.rows_of_tables(project, tables, False)
        for part in batched(sorted(kept_rows), _SLICE):
            for text in (await self._store.tables.row_values(project, part)).values():
                others -= tokens_of(text)
        gone = await erasure.rows_of_tables(project, tables, True) - kept_rows if tables else set()
        _add(counts, "table_rows", await self._store.tables.purge_rows(project, sorted(gone)))
        await erasure.remove_known(project, "tables", tables, counts)
        files = [digest for digest in _of("files", words) if digest in others]
        await erasure.remove_known(project, "files", files, counts)

    async def _payloads(self, project: str, is_named: NamedIn, counts: Counts) -> None:
        """Remove training jobs and logs that were given any of the calls; weights stay."""
        supervisor = self._training.supervisor
        for table, row_id, blob in await self._store.erasure.payloads(project):
            if await asyncio.to_thread(self._is_about, is_named, blob):
                if table == "train_jobs":
                    await supervisor.cancel(row_id)
                    await supervisor.wait_until_ended(row_id)
                await self._store.erasure.payload(table, row_id, counts)

    def _is_about(self, is_named: NamedIn, blob: str) -> bool:
        try:
            packed = self._store.blobs.read(blob)
        except NotFound:
            return False
        with zstandard.ZstdDecompressor().stream_reader(packed) as stream:
            return is_named(stream.read().decode("utf-8", "replace"))

    async def _mentioning(self, project: str, is_named: NamedIn) -> list[JobRow]:
        """The open jobs that are about the subject; what an archive holds is not known before it is stored."""

        def is_about(row: JobRow) -> bool:
            return row.kind == IMPORT_JOB or is_named(jsontext.dumps([row.id, row.body, row.caller, row.progress]))

        return [row for row in await self._store.erasure.open_jobs(project) if is_about(row)]

    async def _end_jobs(self, project: str, open_jobs: list[JobRow]) -> None:
        """Cancel jobs that would write what is removed; raises Conflict where they do not end."""
        for row in open_jobs:
            await self._jobs.cancel(row.project_id, row.id)
        ids = {row.id for row in open_jobs}
        deadline = asyncio.get_running_loop().time() + _WAIT_SECONDS
        while any(row.id in ids for row in await self._store.erasure.open_jobs(project)):
            if asyncio.get_running_loop().time() > deadline:
                raise Conflict("Jobs of the project did not end in time; cancel them and purge again")
            await asyncio.sleep(0.2)


def _add(counts: Counts, name: str, count: int) -> None:
    counts[name] = counts.get(name, 0) + count


def _of(kind: str, words: set[str]) -> list[str]:
    return sorted(word.removeprefix(f"{kind}/") for word in words if word.startswith(f"{kind}/"))
