"""Archives into a running server: `POST /archives/import` takes one as it arrives, and a job stores it."""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO

from fastapi import Request, Response

from heddle.errors import Conflict, HeddleError, InvalidRequest, NotFound
from heddle.evals.jobs import JobRun, Jobs, JobsDep, Later
from heddle.http.routing import Admin, ResponseModel, SettingsDep, StoreDep, answer, group
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.blobs.folder import FileWriter
from heddle.store.control.erasure import IMPORT_JOB, PURGE_JOB
from heddle.store.control.eval_jobs import JobRow
from heddle.store.data_folder import disk_failures
from heddle.trace.files import FILE_FORM, FileForm, boundary_of
from heddle.transfer.archive import ArchiveReader
from heddle.transfer.archive_import import Import
from heddle.transfer.renames import Renames
from heddle.transfer.validation import ArchiveCheck
from heddle.wire import refs, times
from heddle.wire.jsontypes import Json

router = group("Projects")
FOLDER = "imports"
"""Where archives wait for their job, below the data folder."""
_ABANDONED_SECONDS = 86_400.0
_WAIT_SECONDS = 1.0


class ArchiveImportRes(ResponseModel):
    """The job that stores the archive, and its project, for /evaluations/jobs/query."""

    job_id: str
    project_id: str


@router.post("/archives/import", response_model=ArchiveImportRes, openapi_extra=FILE_FORM)
async def import_archive(
    request: Request, caller: Admin, settings: SettingsDep, store: StoreDep, jobs: JobsDep
) -> Response:
    """Take what `heddle export` wrote, as the file of a form, and store it in a job; a second time adds nothing.

    Each `project` of the query is `old=new`, a project that is stored under another name. The key must reach all.
    An archive of a project that redacts is refused before any of it is stored: it would lie here as it is.
    """
    renamed, is_redacted = request.query_params.getlist("project"), await store.redaction.is_on()
    boundary = boundary_of(request.headers.get("content-type", ""))

    def check(beginning: bytes) -> None:
        for project in _projects(Path("The archive"), renamed, beginning)[1] if is_redacted else ():
            if store.redaction.has_rules(caller.open(project)):
                raise Conflict(
                    f"The project {project} has redaction rules, and an uploaded archive would be stored "
                    "unredacted until its import; import it on the server's machine with `heddle import archive`"
                )

    writer = await asyncio.to_thread(_begin, Path(settings.data) / FOLDER, check)
    form = FileForm(boundary, lambda _: writer, settings.max_archive)
    try:
        await form.receive(request.stream())
        form.require_file()
        await asyncio.to_thread(form.keep, lambda _: None)
        projects = await asyncio.to_thread(_verify, writer.unfinished, renamed)
        for project in projects:
            caller.open(project)
        path = writer.unfinished.replace(writer.path)
        body: Json = {"file": path.name, "projects": renamed, "into": projects}
        job = await jobs.submit(IMPORT_JOB, caller, projects[0], body)
        for project in map(refs.internal_project, projects):
            await store.audit_log.note(caller.user, "archive.import", project, {"job": job.id})
    except BaseException:
        for path in (writer.unfinished, writer.path):
            path.unlink(missing_ok=True)
        raise
    finally:
        await asyncio.to_thread(writer.discard)
    return answer({"job_id": job.id, "project_id": projects[0]})


def _begin(folder: Path, check: Callable[[bytes], None]) -> "_Writer":
    """A file that begins with a dot until it is verified; raises StorageFull."""
    with disk_failures():
        folder.mkdir(parents=True, exist_ok=True)
        return _Writer(tempfile.NamedTemporaryFile(dir=folder, prefix=".", delete=False), folder / times.uuid7(), check)


class _Writer(FileWriter):
    """A file that is `unfinished` until it gets its path; `check` may refuse its beginning before that is written."""

    def __init__(self, file: IO[bytes], path: Path, check: Callable[[bytes], None]) -> None:
        super().__init__(file, lambda *_: None)
        self.unfinished, self.path = Path(file.name), path
        self._check = check

    def write(self, chunk: bytes) -> None:
        """Append; raises StorageFull and what `check` raises."""
        if not self.size:
            self._check(chunk)
        super().write(chunk)


def _projects(path: Path, renamed: list[str], beginning: bytes | None = None) -> tuple[ArchiveReader, list[str]]:
    """An archive (or its beginning) and the projects that it would fill; raises InvalidRequest where there are none."""
    try:
        archive = ArchiveReader(path, beginning)
        renames = Renames.parse(renamed, archive.header.projects)
    except HeddleError as error:
        raise InvalidRequest(error.reason.replace(str(path), "The archive")) from error
    if not archive.header.projects:
        raise InvalidRequest("The archive has no projects")
    return archive, [renames.name(project) for project in archive.header.projects]


def _verify(path: Path, renamed: list[str]) -> list[str]:
    """The projects that a whole archive would fill; raises InvalidRequest for a damaged one."""
    archive, projects = _projects(path, renamed)
    try:
        archive.verify()
    except HeddleError as error:
        raise InvalidRequest(error.reason.replace(str(path), "The archive")) from error
    return projects


class Archives:
    """Does the jobs."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._folder = Path(settings.data) / FOLDER

    def register(self, jobs: Jobs) -> None:
        """Offer them, and remove what was left by uploads that were cut off."""
        jobs.register(IMPORT_JOB, self._import, removal=self._remove)
        self._sweep(None)

    def _sweep(self, named: Collection[str] | None) -> None:
        """Remove old uploads that were cut off, and old archives that no open job names (None: the server starts).

        Where one server owns the folder, all that was cut off is old as it starts.
        """
        is_alone = named is None and self._settings.control == "sqlite"
        before = time.time() - (0.0 if is_alone else _ABANDONED_SECONDS)
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            is_left = path.name.startswith(".") or (named is not None and path.name not in named)
            with contextlib.suppress(FileNotFoundError):
                if is_left and path.stat().st_mtime < before:
                    path.unlink()

    async def _import(self, job: JobRow, run: JobRun) -> Json:
        imports = await self._store.eval_jobs.open_of(IMPORT_JOB)
        await asyncio.to_thread(self._sweep, {row.body["file"] for row in imports})
        if any(row.id < job.id and not set(job.body["into"]).isdisjoint(row.body["into"]) for row in imports):
            raise Later(_WAIT_SECONDS, "Another archive is being imported into the project")
        purges = await self._store.eval_jobs.open_of(PURGE_JOB)
        if any(row.project_id in job.body["into"] for row in purges):
            raise Later(_WAIT_SECONDS, "Something is being purged from the project")
        path = self._folder / job.body["file"]
        if not path.is_file():
            raise NotFound("The archive was removed; upload it again")
        archive = ArchiveReader(path)
        renames = Renames.parse(job.body["projects"], archive.header.projects)
        checked = ArchiveCheck(archive)
        await asyncio.to_thread(checked.run)
        at_work = Import(self._store, self._settings, renames, checked.folders, run.progress)
        report = await at_work.run(archive)
        return {"new": report.new, "known": report.known, "left_out": report.left_out, "notes": report.notes}

    async def _remove(self, job: JobRow) -> None:
        await asyncio.to_thread((self._folder / job.body["file"]).unlink, True)
