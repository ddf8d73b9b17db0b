"""The fields that the interface document states for inference, nested ones included, in its own order."""

import re

_TOKEN = re.compile(r"(?P<skip>(?:value|as) `[^`]+`)|`(?P<name>\w+)`|(?P<with>object with|object:)|(?P<mark>[({})])")


def field_paths(text: str) -> list[str]:
    """Every field of sections 2.1, 2.2 and 2.3: `tools.function.name`, `response.choices.index`, `models.data.id`."""
    request = _section(text, "### 2.1 ", "### 2.2 ")
    answer, _, rest = _section(text, "### 2.2 ", "### 2.3 ").partition("\nChoice:\n")
    choice, _, rest = rest.partition("\nResponse message:")
    message, _, usage = rest.partition("\nUsage:")
    models, _, model = _section(text, "### 2.3 ", "### 2.4 ").partition("\nModel object:")
    return [
        *_rows(request, ""),
        *_rows(answer, "response."),
        *_rows(choice, "response.choices."),
        *_nested(message, "response.choices.message."),
        *_nested(usage, "response.usage."),
        *_rows(models, "models."),
        *_nested(model, "models.data."),
    ]


def _section(text: str, start: str, end: str) -> str:
    return text[text.index(start) : text.index(end)]


def _rows(text: str, prefix: str) -> list[str]:
    """The rows of the table in a section; the cells of a row that is an object name what is in it."""
    found = []
    for line in text.splitlines():
        name, _, rest = line.removeprefix("| ").partition(" | ")
        if not line.startswith("| ") or not re.fullmatch(r"\w+", name) or name == "Field":
            continue
        found.append(prefix + name)
        if "object" in rest.partition(" | ")[0]:
            found += _nested(rest, f"{prefix}{name}.")
    return found


def _nested(text: str, prefix: str) -> list[str]:
    """The names in prose such as "`a` (object: `b` string, `c` object with `d`), `e`"."""
    found: list[str] = []
    scopes: list[tuple[str, bool]] = []
    last = ""
    for token in _TOKEN.finditer(text):
        if name := token["name"]:
            found.append(prefix + ".".join([*(scope for scope, _ in scopes if scope), name]))
            last = name
        elif token["with"] and last:
            scopes.append((last, False))
            last = ""
        elif token["mark"] and token["mark"] in "({":
            scopes.append((last, True))
            last = ""
        elif token["mark"]:
            while scopes and not scopes.pop()[1]:
                pass
            last = ""
    return found
