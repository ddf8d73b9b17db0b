"""Projects of an archive under other names: their ids, the refs to them, and the addresses of their models."""

import re
from collections.abc import Mapping

from heddle.errors import HeddleError
from heddle.transfer.archive import Row
from heddle.wire import jsontext, refs

_NAMING = (refs.EXTERNAL, refs.ARTIFACT)
"""What names a project of a text as it is outside, JSON or plain."""


class Renames:
    """The new names of some projects (`entity/project` to `entity/project`); what is not named keeps its name.

    Digests stay: they are the names of versions, tables and rows, and refs go on meaning the same things.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        """Raises InvalidRequest for a name that is none."""
        self._names = {old: new for old, new in names.items() if old != new}
        self._internal = {refs.internal_project(old): refs.internal_project(new) for old, new in self._names.items()}
        named = {jsontext.dumps(old)[1:-1]: jsontext.dumps(new)[1:-1] for old, new in self._names.items()}
        self._refs = {f"{refs.INTERNAL}{old}/": f"{refs.INTERNAL}{new}/" for old, new in self._internal.items()}
        self._refs |= {f"{kind}{old}/": f"{kind}{new}/" for kind in _NAMING for old, new in named.items()}
        # At once, for projects may change names with each other.
        self._pattern = re.compile("|".join(map(re.escape, self._refs)))

    @classmethod
    def parse(cls, given: "list[str]", known: "list[str]") -> "Renames":
        """From `old=new` texts; raises HeddleError for another form and for an unknown project."""
        names = {}
        for text in given:
            old, equals, new = text.partition("=")
            if not equals:
                raise HeddleError(f"--project must be OLD=NEW, both of the form entity/project; got {text!r}")
            if old not in known:
                raise HeddleError(f"the archive has no project {old!r}; it contains {', '.join(known) or 'none'}")
            names[old] = new
        return cls(names)

    def name(self, project_id: str) -> str:
        """The new name of an `entity/project`."""
        return self._names.get(project_id, project_id)

    def internal(self, project: str) -> str:
        """The new internal id of an internal id."""
        return self._internal.get(project, project)

    def text(self, text: str) -> str:
        """A stored text with its refs to renamed projects, and the addresses of their models."""
        if not any(old in text for old in self._refs):
            return text
        return self._pattern.sub(lambda found: self._refs[found[0]], text)

    def record(self, record: Row) -> Row:
        """A record under the new names."""
        if not self._refs:
            return record
        changed = {name: self.text(value) if isinstance(value, str) else value for name, value in record.items()}
        if "entity" in record:
            changed["entity"], changed["project"] = self.name(f"{record['entity']}/{record['project']}").split("/")
        elif "project" in record:
            changed["project"] = self.internal(record["project"])
        if record.get("project_id"):
            changed["project_id"] = self.name(record["project_id"])
        if record.get("run_id"):
            project, colon, run = record["run_id"].partition(":")
            changed["run_id"] = f"{self.internal(project)}{colon}{run}" if colon else record["run_id"]
        return changed
