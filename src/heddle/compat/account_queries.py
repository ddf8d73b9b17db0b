"""The account questions of `POST /graphql`, apart from its route: the library of the language is large."""

import base64
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from graphql.error import GraphQLSyntaxError
from graphql.language import FieldNode, OperationDefinitionNode, OperationType, SelectionSetNode, parse
from graphql.utilities import value_from_ast_untyped

from heddle.auth import Caller, Scope
from heddle.errors import Forbidden, HeddleError
from heddle.store.base import Store
from heddle.wire import refs
from heddle.wire.calls import CallsQuery
from heddle.wire.jsontypes import Json

Arguments = Mapping[str, Any]
Node = Json
PERMISSION_ERROR = "PERMISSION_ERROR"
MAX_DESCRIPTION = 10_000
MAX_TEXT = 100_000
MAX_TOKENS = 2000


class GraphQLProblem(Exception):
    """Something that goes into the `errors` list; `code` becomes an extension."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


def _parse(text: str, name: str | None) -> OperationDefinitionNode:
    """The operation of that name, or the only one; raises GraphQLProblem for anything that is not understood."""
    if len(text) > MAX_TEXT:
        raise GraphQLProblem(f"The query is longer than {MAX_TEXT} characters")
    try:
        definitions = parse(text, no_location=True, max_tokens=MAX_TOKENS).definitions
    except GraphQLSyntaxError as error:
        raise GraphQLProblem(error.message) from None
    operations = [found for found in definitions if isinstance(found, OperationDefinitionNode)]
    chosen = [found for found in operations if name is None or (found.name is not None and found.name.value == name)]
    if len(chosen) != 1:
        raise GraphQLProblem(f"Unknown operation named {name!r}." if name else "Must provide operation name.")
    if chosen[0].operation is OperationType.SUBSCRIPTION:
        raise GraphQLProblem("Only queries and mutations are served here")
    return chosen[0]


def _fields(selections: SelectionSetNode) -> Iterator[tuple[str, str, FieldNode]]:
    """Each selected field with its name in the answer and its own name."""
    for field in selections.selections:
        if not isinstance(field, FieldNode):
            raise GraphQLProblem("Fragments are not served here")
        name = field.name.value
        yield field.alias.value if field.alias else name, name, field


class AccountQueries:
    """Answers operations for one caller; `address` is where this server is reached."""

    def __init__(self, store: Store, caller: Caller, address: str) -> None:
        self._store = store
        self._caller = caller
        self._address = address

    async def answer(self, text: str, name: str | None, variables: Json) -> Json:
        """The answer to the operation of that name: its `data`, or what is wrong with it."""
        try:
            return {"data": await self._run(_parse(text, name), variables)}
        except GraphQLProblem as problem:
            error: Json = {"message": problem.message}
            if problem.code:
                error["extensions"] = {"code": problem.code}
            return {"data": None, "errors": [error]}

    async def _run(self, operation: OperationDefinitionNode, variables: Json) -> Json:
        """The `data` of an operation."""
        known: dict[str, Callable[[Arguments], Awaitable[Any]]] = {"upsertModel": self._upsert_model}
        if operation.operation is OperationType.QUERY:
            known = {"viewer": self._viewer, "project": self._project, "model": self._project}
            known |= {"serverInfo": self._server_info, "entity": self._entity}
        # A variable that was not given is null.
        given = {found.variable.name.value: None for found in operation.variable_definitions} | variables
        root, data = operation.operation.value.capitalize(), {}
        for key, name, field in _fields(operation.selection_set):
            if name == "__typename":
                data[key] = root
            elif name not in known:
                raise _unknown(name, root)
            else:
                arguments = {
                    argument.name.value: value_from_ast_untyped(argument.value, given) for argument in field.arguments
                }
                data[key] = _select(await known[name](arguments), field)
        return data

    async def _viewer(self, _: Arguments) -> Node:
        user, entity = self._caller.user, self._caller.default_entity
        return {
            "id": _node_id("User", user),
            "username": user,
            "name": user,
            "email": None,
            "entity": entity,
            "admin": self._caller.has(Scope.ADMIN),
            "deletedAt": None,
            "flags": None,
            "defaultEntity": {"id": _node_id("Entity", entity), "name": entity},
            "teams": {"edges": [{"node": {"id": _node_id("Entity", entity), "name": entity}}]},
        }

    async def _entity(self, arguments: Arguments) -> Node | None:
        name = _text(arguments, "name")
        if not self._caller.reaches_entity(name):
            return None
        return {"id": _node_id("Entity", name), "name": name, "readOnly": not self._caller.has(Scope.WRITE)}

    async def _server_info(self, _: Arguments) -> Node:
        return {"frontendHost": self._address}

    async def _project(self, arguments: Arguments) -> Node | None:
        name, entity = _text(arguments, "name"), arguments.get("entityName") or self._caller.default_entity
        project_id = f"{entity}/{name}"
        try:
            internal = self._caller.open(project_id)
        except HeddleError:
            return None
        store = self._store
        # It is there once it was made here, or anything was written to it.
        if not await store.projects.exists(internal) and not await store.calls.count(CallsQuery(internal, limit=1)):
            return None
        is_reader = self._caller.may_read(project_id)
        return _project_node(project_id, await store.projects.description(internal) if is_reader else None)

    async def _upsert_model(self, arguments: Arguments) -> Node:
        given = arguments.get("input")
        if not isinstance(given, dict):
            raise GraphQLProblem("Argument 'input' of 'upsertModel' is required")
        name, entity = _text(given, "name"), given.get("entityName") or self._caller.default_entity
        project_id, description = f"{entity}/{name}", given.get("description")
        if description is not None and not (isinstance(description, str) and len(description) <= MAX_DESCRIPTION):
            raise GraphQLProblem(f"description must be a string of at most {MAX_DESCRIPTION} characters")
        try:
            internal = self._caller.require(Scope.WRITE).open(project_id)
        except Forbidden as error:
            raise GraphQLProblem(error.reason, PERMISSION_ERROR) from None
        except HeddleError as error:
            raise GraphQLProblem(error.reason) from None
        description = await self._store.redaction.value(internal, description)
        kept = await self._store.projects.make(internal, description)
        kept = kept if self._caller.may_read(project_id) else description
        return {"model": _project_node(project_id, kept), "project": _project_node(project_id, kept), "inserted": True}


def _project_node(project_id: str, description: str | None) -> Node:
    entity, _, name = project_id.partition("/")
    return {
        "id": _node_id("Project", refs.internal_project(project_id)),
        "name": name,
        "entityName": entity,
        "description": description,
        "entity": {"id": _node_id("Entity", entity), "name": entity},
    }


def _text(arguments: Arguments, name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str) or not value:
        raise GraphQLProblem(f"Argument {name!r} is required and must be a string")
    return value


def _node_id(kind: str, name: str) -> str:
    return base64.b64encode(f"{kind}:{name}".encode("utf-8", "replace")).decode()


def _unknown(name: str, owner: str) -> GraphQLProblem:
    return GraphQLProblem(f'Cannot query field "{name[:100]}" on type "{owner}"; heddle supports only account queries.')


def _select(value: Any, field: FieldNode) -> Any:
    """The asked part of a found value."""
    if isinstance(value, list):
        return [_select(item, field) for item in value]
    if not isinstance(value, dict):
        return value
    if field.selection_set is None:
        raise GraphQLProblem(f'Field "{field.name.value}" must have a selection of subfields.')
    chosen = {}
    for key, name, child in _fields(field.selection_set):
        if name not in value:
            raise _unknown(name, field.name.value)
        chosen[key] = _select(value[name], child)
    return chosen
