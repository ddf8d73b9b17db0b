"""What the known classes are made from, and how one is written as a value."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict


class BaseObject(BaseModel):
    """The root of the classes that the server knows."""

    name: str | None = None
    description: str | None = None


class BaseModelStrict(BaseModel):
    """A part that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid")


class OptionalFields:
    """Mixed into a part whose later fields are written only when they are given, as older clients do not know them."""

    written_when_given: ClassVar[frozenset[str]] = frozenset()


def dump(value: Any) -> Any:
    """A model as clients write it: its class, every field by its alias, class again, bases; parts likewise."""
    if isinstance(value, BaseModel):
        cls = type(value)
        bases = [base.__name__ for base in cls.__mro__[1:-1] if base is not OptionalFields]
        fields = {field.alias or name: dump(getattr(value, name)) for name, field in _written(value)}
        return {"_type": cls.__name__, **fields, "_class_name": cls.__name__, "_bases": bases}
    if isinstance(value, dict):
        return {key: dump(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [dump(item) for item in value]
    return value


def _written(value: BaseModel) -> list[tuple[str, Any]]:
    optional = value.written_when_given if isinstance(value, OptionalFields) else frozenset()
    fields = type(value).model_fields.items()
    return [(name, field) for name, field in fields if name not in optional or name in value.model_fields_set]
