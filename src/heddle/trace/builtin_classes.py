"""What becomes of a value that is published as one of the object classes that the server itself knows.

It is completed with the defaults of its class before its digest is computed (contract: trace-core, section 4).
"""

from typing import Any, NamedTuple

from pydantic import ValidationError

from heddle.errors import InvalidRequest

ANNOTATION_SPEC, _DASHBOARD = "AnnotationSpec", "Dashboard"
_ROOTS = ("BaseObject", "Object")


class Normalised(NamedTuple):
    """A value as it is stored and hashed; its class nearest to the root, and its own class (None: no classes)."""

    value: Any
    base_class: str | None = None
    leaf_class: str | None = None


def normalise(value: Any, known_class: str | None) -> Normalised:
    """The stored form of a value that is published, maybe as one of the known classes.

    Raises InvalidRequest when the class is unknown or the value is none of it.
    """
    if not isinstance(value, dict):
        if known_class is not None:
            raise InvalidRequest("object_class cannot be provided for non-dict objects")
        return Normalised(value)
    classes = _classes(value)
    if classes is not None:
        if known_class and classes[1] != known_class:
            message = f"object_class must match val's defined object class: {classes[1]} != {known_class}"
            raise InvalidRequest(message[:500])
        # What SDKs publish of the other classes they have checked themselves.
        return _completed(value, classes[1]) if classes[1] == _DASHBOARD else Normalised(value, *classes)
    return Normalised(value) if known_class is None else _completed(value, known_class)


def kind_of(value: Any) -> str:
    """`op` or `object`."""
    if not isinstance(value, dict) or "_type" not in value:
        return "object"
    kind = value["_type"]
    if "weave_type" in value:
        kind = value["weave_type"].get("type") if isinstance(value["weave_type"], dict) else None
    return "op" if kind == "Op" else "object"


def _completed(value: dict[str, Any], known_class: str) -> Normalised:
    # Few clients publish such objects: a server that none of them asks does not load the classes.
    from heddle.trace.builtin_models import REGISTRY
    from heddle.trace.builtin_views import dump

    model = REGISTRY.get(known_class)
    if model is None:
        raise InvalidRequest(f"Unknown object class: {known_class[:200]}")
    try:
        completed = dump(model.model_validate(value))
    except ValidationError as error:
        raise InvalidRequest(_reason(known_class, error)) from None
    classes = _classes(completed)
    if classes is None:
        raise InvalidRequest(f"{known_class} is only used inside other classes and cannot be an object itself")
    return Normalised(completed, *classes)


def _reason(known_class: str, error: ValidationError) -> str:
    problems = [
        f"{'.'.join(map(str, item['loc'])) or 'val'}: {item['msg']}"
        for item in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    return f"The value is not a valid {known_class}: {'; '.join(problems[:10])}"


def _classes(value: dict[str, Any]) -> tuple[str, str] | None:
    """Base and leaf class of a value that names its bases."""
    bases, leaf = value.get("_bases"), value.get("_class_name")
    if not isinstance(bases, list) or len(bases) < 2 or not isinstance(leaf, str):
        return None
    if bases[-1] != "BaseModel" or bases[-2] not in _ROOTS:
        return None
    base = bases[-3] if len(bases) > 2 else leaf
    return (base, leaf) if isinstance(base, str) else None
