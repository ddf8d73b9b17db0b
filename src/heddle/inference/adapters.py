"""The adapters that are offered: kept as immutable versions, addressed as clients address them, loaded when asked for.

Addresses: `name` (latest), `name@step`, `wandb-artifact:///entity/project/name` (latest) with `:stepN` or `:latest`.
"""

import asyncio
import errno
import filecmp
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from heddle.auth import Caller
from heddle.errors import InvalidRequest, NotFound, StorageFull
from heddle.inference.engine.base import AdapterRef
from heddle.store.control.adapters import AdapterRow
from heddle.wire import ids, times

FOLDER = "adapters"
_FILES = ("adapter_config.json", "adapter_model.safetensors")
_ARTIFACT = re.compile(
    r"wandb-artifact:/{2,3}(?P<entity>[^/:]+)/(?P<project>[^/:]+)/(?P<name>[^/:@]+)(?::(?P<at>[^/]+))?"
)
_SHORT = re.compile(r"(?P<name>[^/:@]+)(?:@(?P<at>[^/]+)|:(?P<step>step\d+|latest))?")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. -]{0,127}")


class AdapterTable(Protocol):
    """Where versions are kept."""

    async def add(self, row: AdapterRow) -> None:
        """Make a version known; raises InvalidRequest when it exists."""
        ...

    async def remove(self, row: AdapterRow, at: int, user: str) -> None:
        """Forget a version."""
        ...

    async def all(self) -> list[AdapterRow]:
        """Every version, oldest first."""
        ...


@dataclass(frozen=True, slots=True)
class Address:
    """What a client calls an adapter; a step of None is the latest."""

    name: str
    step: int | None = None
    entity: str = ""
    project: str = ""

    @classmethod
    def parse(cls, text: str) -> "Address | None":
        """The address in a model name, None when it cannot be one."""
        if match := _ARTIFACT.fullmatch(text):
            step = _step(match["at"])
            return None if step == -1 else cls(match["name"], step, match["entity"], match["project"])
        if match := _SHORT.fullmatch(text):
            step = _step(match["at"] or match["step"])
            return None if step == -1 else cls(match["name"], step)
        return None


def _step(text: str | None) -> int | None:
    """The number in `stepN` or `N`; None for the latest, -1 for what is neither."""
    if text is None or text == "latest":
        return None
    digits = text.removeprefix("step")
    return int(digits) if digits.isdigit() and digits.isascii() and len(digits) < 16 else -1


@dataclass(frozen=True, slots=True)
class Version:
    """One version that can be served."""

    row: AdapterRow
    ref: AdapterRef

    @property
    def name(self) -> str:
        """The full name without a step."""
        row = self.row
        return f"wandb-artifact:///{row.entity}/{row.project}/{row.name}" if row.entity else row.name

    @property
    def label(self) -> str:
        """`name@step`, as answers name the policy."""
        return f"{self.row.name}@{self.row.step}"

    @property
    def policy(self) -> str:
        """`name@step`, with the project before it where the adapter belongs to one."""
        place = f"{self.row.entity}/{self.row.project}/" if self.row.entity else ""
        return place + self.label

    def reached_by(self, caller: Caller) -> bool:
        """True when the caller may use it."""
        return not self.row.entity or caller.reaches(f"{self.row.entity}/{self.row.project}")


class Adapters:
    """The versions of one served model, kept in the table and in folders below the data folder."""

    def __init__(self, table: AdapterTable, data: Path) -> None:
        self._table = table
        self._data = data
        self._versions: dict[tuple[str, str, str], dict[int, Version]] = {}
        self._changing = asyncio.Lock()

    async def open(self, base_model: str) -> None:
        """Read the table; versions for another base model are left aside, folders that no version has are removed."""
        self._versions.clear()
        rows = await self._table.all()
        for row in rows:
            if row.base_model == base_model and all((self._data / row.folder / name).is_file() for name in _FILES):
                self._keep(self._version(row))
        await asyncio.to_thread(_sweep, self._data / FOLDER, {Path(row.folder).name for row in rows})

    def _version(self, row: AdapterRow) -> Version:
        place = f"{row.entity}/{row.project}/" if row.entity else ""
        # The folder is new for each version, so a name that is used again is another policy to every cache.
        return Version(
            row, AdapterRef(f"{place}{row.name}@{row.step}#{Path(row.folder).name}", self._data / row.folder)
        )

    def _keep(self, version: Version) -> None:
        row = version.row
        self._versions.setdefault((row.entity, row.project, row.name), {})[row.step] = version

    def latest(self, caller: Caller) -> list[Version]:
        """The newest version of every adapter that the caller may use."""
        newest = [steps[max(steps)] for steps in self._versions.values()]
        return [version for version in newest if version.reached_by(caller)]

    def find(self, address: Address, caller: Caller, project: str | None = None) -> Version | None:
        """The version behind an address; `project` (`team/project`) decides between equal short names.

        Raises InvalidRequest when a short name means several adapters.
        """
        if address.entity:
            keys = [(address.entity, address.project, address.name)]
        else:
            keys = [key for key in self._versions if key[2] == address.name]
        found = [steps for key in keys if (steps := self._versions.get(key))]
        found = [steps for steps in found if next(iter(steps.values())).reached_by(caller)]
        if len(found) > 1:
            rows = [next(iter(steps.values())).row for steps in found]
            own = [s for s, r in zip(found, rows, strict=True) if f"{r.entity}/{r.project}" == project]
            own = own or [s for s, r in zip(found, rows, strict=True) if not r.entity]
            if len(own) != 1:
                names = ", ".join(next(iter(steps.values())).name for steps in found[:5])
                raise InvalidRequest(f"The model name {address.name!r} means several adapters: {names}", param="model")
            found = own
        if not found:
            return None
        steps = found[0]
        return steps.get(max(steps) if address.step is None else address.step)

    @asynccontextmanager
    async def adding(
        self, address: Address, source: Path, base_model: str, user: str, next_step: bool
    ) -> AsyncIterator[Version]:
        """Copy a PEFT folder for a new version, which is offered when the body ends well, and leaves nothing otherwise.

        Without a step in the address it is 0, or the next one. Raises InvalidRequest when the folder is no adapter or
        the version exists, StorageFull when there is no room for the copy.
        """
        if not _NAME.fullmatch(address.name):
            raise InvalidRequest(f"{address.name!r} is no name for an adapter", param="lora_name")
        async with self._changing:
            step = self._free_step(address, next_step)
            folder = await asyncio.to_thread(_copy, source, self._data)
            version = self._version(
                AdapterRow(address.entity, address.project, address.name, step, base_model, folder, times.now(), user)
            )
            try:
                yield version
                await self._table.add(version.row)
            except BaseException:
                await asyncio.shield(self.discard(version))
                raise
            self._keep(version)

    def _free_step(self, address: Address, next_step: bool) -> int:
        steps = self._versions.get((address.entity, address.project, address.name), {})
        step = address.step
        if step is None:
            step = max(steps) + 1 if steps and next_step else 0
        if step in steps:
            raise InvalidRequest(
                f"The adapter {address.name}@{step} exists already; set load_inplace to add a newer step",
                param="lora_name",
            )
        return step

    async def holds(self, address: Address, source: Path) -> bool:
        """True when the newest version of a name has the same files as the folder."""
        steps = self._versions.get((address.entity, address.project, address.name))
        if not steps:
            return False
        newest = steps[max(steps)].ref.path
        return await asyncio.to_thread(_same_files, source, newest)

    async def discard(self, version: Version) -> None:
        """Remove the folder of a version that is not offered, or not any more."""
        await asyncio.to_thread(shutil.rmtree, self._data / version.row.folder, True)

    async def remove(self, address: Address, user: str) -> list[Version]:
        """Forget one version, or all when the address has no step; raises NotFound. Folders stay until `discard`."""
        key = (address.entity, address.project, address.name)
        async with self._changing:
            steps = self._versions.get(key, {})
            chosen = (
                list(steps.values()) if address.step is None else [steps[address.step]] if address.step in steps else []
            )
            if not chosen:
                raise NotFound(f"The adapter {address.name!r} is not there", param="lora_name")
            for version in chosen:
                await self._table.remove(version.row, times.now(), user)
                del steps[version.row.step]
            if not steps:
                self._versions.pop(key, None)
            return chosen


def _copy(source: Path, data: Path) -> str:
    """Copy a PEFT folder durably to a place of its own; returns that relative to the data folder."""
    missing = [name for name in _FILES if not (source / name).is_file()]
    if missing:
        raise InvalidRequest(
            f"The folder {source.name!r} is no LoRA adapter: it has no {missing[0]}", param="lora_path"
        )
    try:
        return f"{FOLDER}/{_durable_copy(source, data / FOLDER)}"
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull("There is no room for a copy of the adapter") from error
        raise InvalidRequest(
            f"The folder {source.name!r} cannot be copied: {error.strerror or error}", param="lora_path"
        ) from error


def _durable_copy(source: Path, parent: Path) -> str:
    parent.mkdir(exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=parent, prefix=".new-"))
    try:
        for name in _FILES:
            shutil.copyfile(source / name, temporary / name)
            _sync(temporary / name)
        _sync(temporary)
        final = parent / ids.uuid7()
        os.rename(temporary, final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync(parent)
    return final.name


def _sweep(parent: Path, known: set[str]) -> None:
    """Remove what an interrupted change left behind."""
    for path in parent.iterdir() if parent.is_dir() else ():
        if path.name not in known:
            shutil.rmtree(path, ignore_errors=True)


def _same_files(one: Path, other: Path) -> bool:
    return all((one / name).is_file() and filecmp.cmp(one / name, other / name, shallow=False) for name in _FILES)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
