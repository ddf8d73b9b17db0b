"""Which adapter versions are loaded, and by how many requests each is used."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.inference.engine.base import AdapterRef, RequestRefused

if TYPE_CHECKING:
    from heddle.models.interfaces import CausalModel


@dataclass(slots=True)
class _Loaded:
    users: int = 0
    forgotten: bool = False
    """Goes when its last user has gone."""


class Adapters:
    """Loads versions when they are needed; the least recently used idle ones make room."""

    def __init__(self, model: "CausalModel", most: int) -> None:
        self._model = model
        self._most = most
        self._loaded: OrderedDict[str, _Loaded] = OrderedDict()

    @property
    def ids(self) -> tuple[str, ...]:
        """Loaded versions, the least recently used one first."""
        return tuple(self._loaded)

    def load(self, adapter: AdapterRef) -> None:
        """Make a version ready. Raises RequestRefused when it does not fit the model."""
        self._ready(adapter).forgotten = False

    def acquire(self, adapter: AdapterRef) -> None:
        """Count a request that uses a version, loaded if need be."""
        self._ready(adapter).users += 1

    def _ready(self, adapter: AdapterRef) -> _Loaded:
        from heddle.models.interfaces import ModelError

        state = self._loaded.get(adapter.id)
        if state is None:
            try:
                self._model.load_adapter(adapter.id, adapter.path)
            except ModelError as error:
                raise RequestRefused(f"adapter {adapter.id}: {error}", param="model") from error
            except OSError as error:
                raise RequestRefused(f"adapter {adapter.id} is not there any more", param="model") from error
            state = self._loaded[adapter.id] = _Loaded()
        self._loaded.move_to_end(adapter.id)
        self._trim(adapter.id)
        return state

    def release(self, adapter: AdapterRef) -> None:
        """A request that used a version has ended."""
        state = self._loaded[adapter.id]
        state.users -= 1
        if not state.users and state.forgotten:
            self._drop(adapter.id)
        self._trim(adapter.id)

    def unload(self, adapter_id: str) -> None:
        """Forget a version: now, or with the end of the last request that uses it."""
        state = self._loaded.get(adapter_id)
        if state is None:
            return
        state.forgotten = True
        if not state.users:
            self._drop(adapter_id)

    def _trim(self, kept: str) -> None:
        """Drop idle versions, the least recently used first, while there are too many."""
        idle = [name for name, state in self._loaded.items() if not state.users and name != kept]
        for name in idle[: max(0, len(self._loaded) - self._most)]:
            self._drop(name)

    def _drop(self, adapter_id: str) -> None:
        del self._loaded[adapter_id]
        self._model.unload_adapter(adapter_id)
