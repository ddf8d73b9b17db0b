"""Which folders of this machine a client may load an adapter from."""

import os
from pathlib import Path

from heddle.auth import Caller
from heddle.errors import Forbidden, InvalidRequest, NotFound
from heddle.inference.adapters.address import Address
from heddle.inference.adapters.files import FILES, FOLDER
from heddle.paths import TRAINING as CHECKPOINTS
from heddle.paths import OutsideRoot, is_below, resolve
from heddle.settings import Settings
from heddle.store.base import Store

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
                "lora_path names no folder that adapters may be loaded from: it lies outside of the setting "
                "adapter_roots, or belongs to another project",
                param=_PARAM,
            ) from None
        if not os.path.isdir(folder):
            raise NotFound(f"There is no folder {text[:300]!r}", param=_PARAM)
        return folder

    async def _check(self, place: Path, address: Address) -> None:
        """Raise OutsideRoot for what lies outside of the roots, or among another project's adapters or checkpoints."""
        kept = next((kept for kept in (FOLDER, CHECKPOINTS) if is_below(self._data / kept, place)), None)
        if kept is not None:
            await self._check_owner(kept / place.relative_to(resolve(self._data / kept)), address)
        elif not self._takes_any and not any(is_below(root, place) for root in self._roots):
            raise OutsideRoot("no root")

    async def _check_owner(self, place: Path, address: Address) -> None:
        """The folders of versions are only for the project that they belong to."""
        rows = [row for row in await self._store.adapters.all() if Path(row.folder) in (place, *place.parents)]
        if not rows or any((row.entity, row.project) != (address.entity, address.project) for row in rows):
            raise OutsideRoot("another owner")


def check_reach(address: Address, caller: Caller) -> None:
    """Raise Forbidden for a name beyond the caller's reach; names of the whole server are for unbound keys."""
    if address.entity:
        caller.open(f"{address.entity}/{address.project}")
    elif caller.reach:
        raise Forbidden(
            f"{address.name!r} names an adapter of the whole server, and the key of user '{caller.user}' is bound to "
            f"{caller.reach}; name it wandb-artifact:///entity/project/name"
        )
