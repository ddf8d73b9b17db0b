"""LoRA adapters: what clients call them, the folders of their versions, and which of them answer."""

import asyncio
import contextlib
import filecmp
import os
import re
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from heddle import aio
from heddle.auth import Caller
from heddle.errors import Conflict, Forbidden, InvalidRequest, NotFound, StorageFull
from heddle.inference.engine.base import AdapterRef
from heddle.paths import SUMS, OutsideRoot, is_below, resolve, resolve_below, sync, write_sums
from heddle.paths import TRAINING as CHECKPOINTS
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.control.coordination import ADAPTERS, Changes
from heddle.store.control.inference import AdapterKey, AdapterRow
from heddle.store.control.inference import Adapters as AdapterRows
from heddle.store.data_folder import FULL
from heddle.wire import refs, times

_FULL = re.compile(
    r"(?:(?:wandb-artifact|heddle):/{2,3})?"
    r"(?P<entity>[^/:@]+)/(?P<project>[^/:@]+)/(?P<name>[^/:@]+)(?:[:@](?P<at>[^/]+))?"
)
_SHORT = re.compile(r"(?P<name>[^/:@]+)(?:@(?P<at>[^/]+)|:(?P<step>step\d+|latest))?")


@dataclass(frozen=True, slots=True)
class Address:
    """What a client calls an adapter; a step of None is the latest."""

    name: str
    step: int | None = None
    entity: str = ""
    project: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """Entity, project and name."""
        return (self.entity, self.project, self.name)

    @classmethod
    def parse(cls, text: str) -> "Address | None":
        """The address in a model name, None when it cannot be one."""
        if match := _FULL.fullmatch(text):
            step = _step(match["at"])
            return None if step == -1 else cls(match["name"], step, match["entity"], match["project"])
        if match := _SHORT.fullmatch(text):
            step = _step(match["at"] or match["step"])
            return None if step == -1 else cls(match["name"], step)
        return None


def artifact_name(entity: str, project: str, name: str) -> str:
    """The name of a project's adapter as clients of training write it, without a step."""
    return f"{refs.ARTIFACT}{entity}/{project}/{name}"


def _step(text: str | None) -> int | None:
    """The number in `stepN` or `N`; None for the latest, -1 for what is neither."""
    if text is None or text == "latest":
        return None
    digits = text.removeprefix("step")
    return int(digits) if digits.isdigit() and digits.isascii() and len(digits) < 16 else -1


FOLDER = "adapters"
"""Below the data folder; only what lies here is ours to remove."""
FILES = ("adapter_config.json", "adapter_model.safetensors")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. -]{0,127}")
"""What an adapter that is loaded by hand may be called."""


def copy_folder(source: Path, data: Path) -> str:
    """Copy a PEFT folder durably to a place of its own; returns that relative to the data folder.

    Raises InvalidRequest for a folder that is no adapter or cannot be read, StorageFull when there is no room.
    """
    missing = [name for name in FILES if not (source / name).is_file()]
    if missing:
        raise InvalidRequest(
            f"The folder {source.name!r} is not a LoRA adapter: {missing[0]} is missing", param="lora_path"
        )
    try:
        return f"{FOLDER}/{_durable_copy(source, data / FOLDER)}"
    except OSError as error:
        if error.errno in FULL:
            raise StorageFull("The disk is full; the adapter was not copied") from error
        raise InvalidRequest(
            f"The folder {source.name!r} cannot be copied: {error.strerror or error}", param="lora_path"
        ) from error


def _durable_copy(source: Path, parent: Path) -> str:
    parent.mkdir(exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=parent, prefix=".new-"))
    try:
        for name in FILES:
            shutil.copyfile(source / name, temporary / name)
        write_sums(temporary)
        for name in (*FILES, SUMS):
            sync(temporary / name)
        sync(temporary)
        final = parent / times.uuid7()
        os.rename(temporary, final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync(parent)
    return final.name


def remove_folder(data: Path, folder: str) -> None:
    """Remove the folder of a version that was loaded by hand; does nothing where it is none."""
    with contextlib.suppress(OutsideRoot):
        shutil.rmtree(resolve_below(data / FOLDER, folder.removeprefix(f"{FOLDER}/")), ignore_errors=True)


def sweep_folders(parent: Path, known: set[str], age: float = 0.0) -> None:
    """Remove what an interrupted change left behind `age` seconds ago, or before."""
    before = time.time() - age
    for path in parent.iterdir() if parent.is_dir() else ():
        if path.name not in known and path.stat().st_mtime <= before:
            shutil.rmtree(path, ignore_errors=True)


def same_files(one: Path, other: Path) -> bool:
    """True when both folders hold the same adapter, byte by byte."""
    return all((one / name).is_file() and filecmp.cmp(one / name, other / name, shallow=False) for name in FILES)


_OLD_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Version:
    """One version that can be served."""

    row: AdapterRow
    ref: AdapterRef

    @property
    def name(self) -> str:
        """The full name without a step."""
        row = self.row
        return artifact_name(row.entity, row.project, row.name) if row.entity else row.name

    @property
    def label(self) -> str:
        """`name@step`, as answers name the policy."""
        return f"{self.row.name}@{self.row.step}"

    @property
    def policy(self) -> str:
        """`name@step`, with the project before it where the adapter belongs to one."""
        place = f"{self.row.entity}/{self.row.project}/" if self.row.entity else ""
        return place + self.label

    @property
    def is_trainable(self) -> bool:
        """True for a step of a trainable model: its folder is training's, and not ours to remove."""
        return not self.row.folder.startswith(f"{FOLDER}/")

    def reached_by(self, caller: Caller) -> bool:
        """True when the caller may use it."""
        return not self.row.entity or caller.reaches(f"{self.row.entity}/{self.row.project}")


class Adapters:
    """The versions of one served model, kept in the table and in folders below the data folder."""

    def __init__(self, table: AdapterRows, data: Path, changes: Changes | None = None) -> None:
        """`changes` tells of what other servers did; without it this server is alone."""
        self._table = table
        self._changes = changes
        self._base_model = ""
        self._seen = 0
        self._data = data
        self._versions: dict[AdapterKey, dict[int, Version]] = {}
        self._aside: dict[tuple[AdapterKey, int], AdapterRow] = {}
        self._latest: dict[AdapterKey, int] = {}
        self._changing = asyncio.Lock()
        self._pointing = asyncio.Lock()
        self._reading = asyncio.Lock()

    async def open(self, base_model: str) -> None:
        """Read the table; versions for another base model are left aside, folders that no version has are removed."""
        self._base_model = base_model
        async with self._reading:
            rows = await self._read()
        known = {Path(row.folder).name for row in rows if Path(row.folder).parent == Path(FOLDER)}
        age = _OLD_SECONDS if self._changes is not None and self._changes.instance.is_shared else 0.0
        await asyncio.to_thread(sweep_folders, self._data / FOLDER, known, age)

    async def look(self) -> list[Version]:
        """Take over what other servers changed since the last look; returns the versions that are gone by that."""
        number = 0 if self._changes is None else await self._changes.number(ADAPTERS)
        if number <= self._seen:
            return []
        async with self._reading:
            if number <= self._seen:
                return []
            before = [version for steps in self._versions.values() for version in steps.values()]
            await self._read()
            there = {version.ref.id for steps in self._versions.values() for version in steps.values()}
            return [version for version in before if version.ref.id not in there]

    async def _read(self) -> list[AdapterRow]:
        """Read the table, behind the number of changes that is seen by that."""
        seen = 0 if self._changes is None else await self._changes.number(ADAPTERS)
        rows, latest = await self._table.snapshot()
        self._versions, self._aside, self._latest = {}, {}, latest
        for row in rows:
            if row.base_model == self._base_model and self._has_files(row.folder):
                self._keep(self._version(row))
            else:
                self._aside[_key(row), row.step] = row
        self._seen = seen
        return rows

    def _has_files(self, folder: str) -> bool:
        return any(
            is_below(self._data / kept, (self._data / folder).absolute()) for kept in (FOLDER, CHECKPOINTS)
        ) and all((self._data / folder / name).is_file() for name in FILES)

    def _version(self, row: AdapterRow) -> Version:
        place = f"{row.entity}/{row.project}/" if row.entity else ""
        # The instant makes a name and step that are used again another policy to every cache.
        return Version(row, AdapterRef(f"{place}{row.name}@{row.step}#{row.created_at:x}", self._data / row.folder))

    def _keep(self, version: Version) -> None:
        self._versions.setdefault(_key(version.row), {})[version.row.step] = version

    def _drop(self, key: AdapterKey, step: int) -> Version | None:
        steps = self._versions.get(key, {})
        version = steps.pop(step, None)
        if not steps:
            self._versions.pop(key, None)
        return version

    def latest(self, caller: Caller) -> list[Version]:
        """What the name of every adapter means that the caller may use."""
        meant = [steps.get(self._current_step(key, steps)) for key, steps in self._versions.items()]
        return [version for version in meant if version is not None and version.reached_by(caller)]

    def _current_step(self, key: AdapterKey, steps: Collection[int]) -> int:
        """The step behind a name without one: training's choice, else the newest."""
        return self._latest[key] if key in self._latest else max(steps)

    def find(self, address: Address, caller: Caller, project: str | None = None) -> Version | None:
        """The version behind an address; `project` (`team/project`) decides between equal short names.

        Raises InvalidRequest when a short name means several adapters.
        """
        if address.entity:
            keys = [address.key]
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
                raise InvalidRequest(
                    f"The model name {address.name!r} is ambiguous; it matches several adapters: {names}", param="model"
                )
            found = own
        if not found:
            return None
        steps = found[0]
        key = _key(next(iter(steps.values())).row)
        return steps.get(self._current_step(key, steps) if address.step is None else address.step)

    def without_files(self, address: Address, caller: Caller) -> str | None:
        """The folder of what an address means where the table knows it and this server's data folder does not."""
        for (key, step), row in self._aside.items():
            is_meant = key == address.key if address.entity else key[2] == address.name
            if is_meant and address.step in (None, step) and row.base_model == self._base_model:
                return row.folder if self._version(row).reached_by(caller) else None
        return None

    @asynccontextmanager
    async def adding(
        self, address: Address, source: Path, base_model: str, user: str, next_step: bool
    ) -> AsyncIterator[Version]:
        """Copy a PEFT folder for a new version, which is offered when the body ends well, and leaves nothing otherwise.

        Without a step in the address it is 0, or the next one. Raises InvalidRequest when the folder is no adapter or
        the version exists, Conflict for a trainable name, StorageFull when there is no room for the copy.
        """
        if not NAME.fullmatch(address.name):
            raise InvalidRequest(f"{address.name!r} is not a valid adapter name", param="lora_name")
        async with self._changing:
            await self.look()
            self._refuse_trainable(address)
            steps = self._versions.get(address.key, {})
            step = address.step
            if step is None:
                step = max(steps) + 1 if steps and next_step else 0
            if step in steps:
                raise InvalidRequest(
                    f"The adapter {address.name}@{step} already exists; set load_inplace to add a newer step",
                    param="lora_name",
                )
            folder = await asyncio.to_thread(copy_folder, source, self._data)
            version = self._version(
                AdapterRow(address.entity, address.project, address.name, step, base_model, folder, times.now(), user)
            )
            try:
                yield version
            except BaseException:
                await asyncio.shield(self.discard(version))
                raise
            await aio.finish(self._store(version))

    async def _store(self, version: Version) -> None:
        """Offer a version; the folder of one that was not stored goes."""
        try:
            await self._table.add(version.row)
        except Exception:
            # It is stored all the same where only the answer to that was lost.
            if version.row not in await self._table.all():
                await self.discard(version)
            raise
        self._keep(version)

    def _refuse_trainable(self, address: Address) -> None:
        steps = self._versions.get(address.key, {})
        if address.key in self._latest or any(version.is_trainable for version in steps.values()):
            raise Conflict(
                f"{address.name!r} is a trainable model: training jobs create its steps, and its checkpoints "
                "are deleted with /v1/preview/models"
            )

    async def holds(self, address: Address, source: Path) -> bool:
        """True when the newest version of a name has the same files as the folder."""
        await self.look()
        steps = self._versions.get(address.key)
        if not steps:
            return False
        newest = steps[max(steps)].ref.path
        return await asyncio.to_thread(same_files, source, newest)

    async def discard(self, version: Version) -> None:
        """Remove the copied folder of a version that is not offered, or not any more."""
        if not version.is_trainable:
            await asyncio.to_thread(remove_folder, self._data, version.row.folder)

    async def remove(self, address: Address, user: str) -> list[Version]:
        """Forget one version, or all when the address has no step. Folders stay until `discard`.

        Raises NotFound, and Conflict for a trainable name.
        """
        async with self._changing:
            await self.look()
            self._refuse_trainable(address)
            steps = self._versions.get(address.key, {})
            chosen = [step for step in steps if address.step in (None, step)]
            if not chosen:
                raise NotFound(f"Adapter {address.name!r} not found", param="lora_name")
            removed = [steps[step] for step in chosen]
            await self._table.remove([version.row for version in removed], times.now(), user)
            for step in chosen:
                self._drop(address.key, step)
            return removed

    async def offer(self, row: AdapterRow, ready: Callable[[AdapterRef], Awaitable[None]]) -> None:
        """Make a step of a trainable model addressable from its folder, which stays where it is; once `ready` is done.

        A no-op when it is offered already. Raises InvalidRequest when the folder holds no adapter, Conflict when the
        step is another folder's or the name that of an adapter which was loaded by hand.
        """
        key = _key(row)
        async with self._changing:
            await self.look()
            steps = self._versions.get(key, {})
            if row.step in steps and steps[row.step].row.folder == row.folder:
                return
            if row.step in steps or not all(version.is_trainable for version in steps.values()):
                raise Conflict(f"The adapter {row.name}@{row.step} already exists")
            if not await asyncio.to_thread(self._has_files, row.folder):
                raise InvalidRequest(f"The checkpoint {row.name}@{row.step} has no {' and '.join(FILES)}")
            version = self._version(row)
            await ready(version.ref)
            await self._table.add(row, self._aside.get((key, row.step)))
            self._aside.pop((key, row.step), None)
            self._keep(version)

    async def point(self, key: AdapterKey, step: int, instead_of: int | None = None) -> None:
        """Let a trainable name mean a step: durably, then for every request that comes. Raises NotFound, Conflict."""
        async with self._pointing:
            await self.look()
            if step not in self._versions.get(key, {}):
                raise NotFound(f"{key[2]}@{step} is not served by this server")
            await self._table.point(key, step, instead_of)
            self._latest[key] = step

    async def pointed(self, key: AdapterKey) -> int | None:
        """The step that a trainable name means; None for another name."""
        await self.look()
        return self._latest[key] if key in self._latest else (await self._table.pointers()).get(key)

    async def withdraw(self, key: AdapterKey, steps: Collection[int] | None, user: str) -> list[Version]:
        """Forget steps of a trainable model (None: all, and the name with them); returns those that were served.

        Raises Conflict, with none forgotten, for the step that the name means.
        """
        async with self._changing:
            await self.look()
            if steps is None:
                await self._table.forget(key, times.now(), user)
                self._latest.pop(key, None)
            else:
                # The table knows steps of base models that are not served now, too.
                rows = [row for row in await self._table.all() if _key(row) == key and row.step in steps]
                await self._table.remove(rows, times.now(), user)
            gone = [
                self._drop(key, step) for step in list(self._versions.get(key, {})) if steps is None or step in steps
            ]
            for lost in [lost for lost in self._aside if lost[0] == key and (steps is None or lost[1] in steps)]:
                del self._aside[lost]
            return [version for version in gone if version is not None]


def _key(row: AdapterRow) -> AdapterKey:
    return (row.entity, row.project, row.name)


_PARAM = "lora_path"


class AdapterRoots:
    """The folders that `adapter_roots` names; `any` is every folder, and so is `auto` where no key is needed."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._data = Path(settings.data)
        self._store = store
        named = settings.adapter_roots
        self._takes_any = named == "any" or (named == "auto" and not settings.needs_key)
        self._roots = [] if named in ("any", "auto") else [Path(root.strip()) for root in named.split(",")]

    async def find(self, text: str, address: Address) -> Path:
        """The folder that a client names for an adapter at an address; raises InvalidRequest, NotFound.

        Whether a folder exists is told only of those that may be loaded.
        """
        try:
            folder = resolve(text)
            await self._check(folder, address)
            for name in FILES:
                await self._check(resolve(folder / name), address)
        except OutsideRoot:
            raise InvalidRequest(
                "lora_path is not a folder that adapters can be loaded from: it is outside the folders of the setting "
                "adapter_roots, or belongs to another project",
                param=_PARAM,
            ) from None
        if not os.path.isdir(folder):
            raise NotFound(f"Folder {text[:300]!r} not found", param=_PARAM)
        return folder

    async def _check(self, place: Path, address: Address) -> None:
        """Raise OutsideRoot for what lies outside of the roots, or among another project's adapters or checkpoints."""
        kept = next((kept for kept in (FOLDER, CHECKPOINTS) if is_below(self._data / kept, place)), None)
        if kept is not None:
            # The folders of versions are only for the project that they belong to.
            named = kept / place.relative_to(resolve(self._data / kept))
            rows = [row for row in await self._store.adapters.all() if Path(row.folder) in (named, *named.parents)]
            if not rows or any((row.entity, row.project) != (address.entity, address.project) for row in rows):
                raise OutsideRoot("another owner")
        elif not self._takes_any and not any(is_below(root, place) for root in self._roots):
            raise OutsideRoot("no root")


def check_reach(address: Address, caller: Caller) -> None:
    """Raise Forbidden for a name beyond the caller's reach; names of the whole server are for unbound keys."""
    if address.entity:
        caller.open(f"{address.entity}/{address.project}")
    elif caller.is_bound:
        raise Forbidden(
            f"{address.name!r} is an adapter of the whole server, but the key of user '{caller.user}' is bound to "
            f"{caller.reach}; use a name such as wandb-artifact:///entity/project/name"
        )
