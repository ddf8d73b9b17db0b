"""The adapters that are offered: kept as immutable versions, addressed as clients address them, loaded when asked for.

Addresses: `name` (latest), `name@step`, `wandb-artifact:///entity/project/name` (latest) with `:stepN` or `:latest`.
"""

import asyncio
import filecmp
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from heddle.auth import Caller
from heddle.errors import InvalidRequest, NotFound
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
        """Read the table; versions for another base model are left aside."""
        self._versions.clear()
        for row in await self._table.all():
            if row.base_model == base_model and (self._data / row.folder / _FILES[0]).is_file():
                self._keep(row)

    def _keep(self, row: AdapterRow) -> Version:
        place = f"{row.entity}/{row.project}/" if row.entity else ""
        # The folder is new for each version, so a name that is used again is another policy to every cache.
        ref = AdapterRef(f"{place}{row.name}@{row.step}#{Path(row.folder).name}", self._data / row.folder)
        version = Version(row, ref)
        self._versions.setdefault((row.entity, row.project, row.name), {})[row.step] = version
        return version

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

    async def add(self, address: Address, source: Path, base_model: str, user: str, next_step: bool) -> Version:
        """Copy a PEFT folder and make it a version; without a step in the address it is 0, or the next one.

        Raises InvalidRequest when the folder is no adapter or the version exists.
        """
        if not _NAME.fullmatch(address.name):
            raise InvalidRequest(f"{address.name!r} is no name for an adapter", param="lora_name")
        async with self._changing:
            steps = self._versions.get((address.entity, address.project, address.name), {})
            step = address.step
            if step is None:
                step = max(steps) + 1 if steps and next_step else 0
            if step in steps:
                raise InvalidRequest(
                    f"The adapter {address.name}@{step} exists already; set load_inplace to add a newer step",
                    param="lora_name",
                )
            folder = await asyncio.to_thread(_copy, source, self._data)
            row = AdapterRow(address.entity, address.project, address.name, step, base_model, folder, times.now(), user)
            return Version(row, AdapterRef(f"{address.name}@{step}#{Path(folder).name}", self._data / folder))

    async def holds(self, address: Address, source: Path) -> bool:
        """True when the newest version of a name has the same files as the folder."""
        steps = self._versions.get((address.entity, address.project, address.name))
        if not steps:
            return False
        newest = steps[max(steps)].ref.path
        return await asyncio.to_thread(_same_files, source, newest)

    async def publish(self, version: Version) -> Version:
        """Store a version that the engine has accepted, and offer it as the latest."""
        await self._table.add(version.row)
        return self._keep(version.row)

    async def discard(self, version: Version) -> None:
        """Remove the folder of a version that was never published."""
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
    parent = data / FOLDER
    parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".new-") as temporary:
        for name in _FILES:
            target = Path(temporary) / name
            shutil.copyfile(source / name, target)
            _sync(target)
        _sync(Path(temporary))
        final = parent / ids.uuid7()
        os.rename(temporary, final)
        _sync(parent)
        Path(temporary).mkdir()
    return f"{FOLDER}/{final.name}"


def _same_files(one: Path, other: Path) -> bool:
    return all((one / name).is_file() and filecmp.cmp(one / name, other / name, shallow=False) for name in _FILES)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
