"""The services of one running server, handed to every route."""

from dataclasses import dataclass

from heddle.settings import Settings
from heddle.store.base import Store


@dataclass(slots=True)
class House:
    """What the routes work with."""

    settings: Settings
    store: Store
