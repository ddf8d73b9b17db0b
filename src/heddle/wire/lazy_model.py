"""Models and adapters whose validators are built when they are first used: most servers use few of them."""

from pydantic import BaseModel, ConfigDict

LAZY = ConfigDict(defer_build=True)
"""The config of a TypeAdapter, unless its type is a model and has its own."""


class LazyModel(BaseModel):
    """A model of which only the fields are known until it is used."""

    model_config = LAZY
