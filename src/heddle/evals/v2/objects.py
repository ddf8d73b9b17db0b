"""/v2/{entity}/{project}/{ops,datasets,scorers,evaluations,models}: versions of objects under a name."""

from typing import Any

from fastapi import APIRouter, Response

from heddle.auth import Caller
from heddle.errors import InvalidRequest, NotFound
from heddle.evals.v2.versions import (
    Entity,
    NamedReadRes,
    ObjectKind,
    Project,
    ReadRes,
    Version,
    Versions,
    internal_ref,
    object_id,
    serve,
)
from heddle.http.routing import Reader, RecordsDep, RequestModel, StoreDep, answer, group
from heddle.store.control.objects import ObjectFilter
from heddle.wire import refs
from heddle.wire.jsontypes import Json
from heddle.wire.records import OP_FILE, PLACEHOLDER_SOURCE, Published, Records, object_value, op_value, publish_dataset

SUMMARISE = (
    "import weave\n\n\n@weave.op\ndef summarize(score_rows):\n"
    '    """Sums the scores up as evaluations do by themselves."""\n'
    "    return weave.flow.scorer.auto_summarize(list(score_rows))\n"
)
OPS = ObjectFilter(is_op=True)
_EVALUATION_OPS = ("evaluate", "predict_and_score", "summarize")
_MODEL_FIELDS = frozenset(("_type", "_class_name", "_bases", "name", "description", "files"))
ops_router: APIRouter = group("Ops")
datasets_router: APIRouter = group("Datasets")
scorers_router: APIRouter = group("Scorers")
evaluations_router: APIRouter = group("Evaluations")
models_router: APIRouter = group("Models")


class OpCreateBody(RequestModel):
    """An op; without a source it gets a placeholder."""

    name: str | None = None
    source_code: str | None = None


class OpReadRes(ReadRes):
    """A version of an op; `code` is empty where its file is missing."""

    code: str


class DatasetCreateBody(RequestModel):
    """A dataset with its rows."""

    name: str | None = None
    description: str | None = None
    rows: list[dict[str, Any]]


class DatasetReadRes(NamedReadRes):
    """A version of a dataset; `rows` is the ref of its table."""

    rows: str


class ScorerCreateBody(RequestModel):
    """A scorer; `op_source_code` is the source of its score op."""

    name: str
    description: str | None = None
    op_source_code: str


class ScorerReadRes(NamedReadRes):
    """A version of a scorer; `score_op` is the ref of the op."""

    score_op: str


class EvaluationCreateBody(RequestModel):
    """An evaluation; `dataset` and `scorers` are refs, `eval_attributes` become fields of the object."""

    name: str
    description: str | None = None
    dataset: str
    scorers: list[str] | None = None
    trials: int = 1
    evaluation_name: str | None = None
    eval_attributes: dict[str, Any] | None = None


class EvaluationReadRes(NamedReadRes):
    """A version of an evaluation; its ops are refs."""

    dataset: str
    scorers: list[str]
    trials: int
    evaluation_name: str | None = None
    evaluate_op: str | None = None
    predict_and_score_op: str | None = None
    summarize_op: str | None = None


class ModelCreateBody(RequestModel):
    """A model; the attributes become fields of the object."""

    name: str
    description: str | None = None
    source_code: str
    attributes: dict[str, Any] | None = None


class ModelReadRes(NamedReadRes):
    """A version of a model; `source_code` is empty where none is stored, `attributes` are its other fields."""

    source_code: str
    attributes: dict[str, Any] | None = None


async def _publish(
    records: Records, caller: Caller, project_id: str, class_name: str, name: str | None, fields: Json
) -> Published:
    """Store a version of an object of a class of the SDK."""
    return await records.publish(caller, project_id, object_id(name, class_name), object_value(class_name) | fields)


async def _publish_op(records: Records, caller: Caller, project_id: str, name: str, source: str) -> Published:
    """Store a version of an op with its source, which is never run here."""
    digest = await records.put_file(caller, project_id, OP_FILE, source.encode("utf-8", "replace"))
    return await records.publish(caller, project_id, name, op_value(digest))


async def _read_source(records: Records, caller: Caller, project_id: str, version: Version) -> str:
    """The source behind a version; empty where there is none, a comment that says why where it cannot be read."""
    files = version.fields.get("files")
    digest = files.get(OP_FILE) if isinstance(files, dict) else None
    try:
        content = await records.get_file(caller, project_id, digest) if isinstance(digest, str) else None
    except NotFound as error:
        return f"# {error.reason}"
    return "" if content is None else content.decode("utf-8", "replace")


async def _create_op(records: Records, caller: Caller, project_id: str, body: OpCreateBody) -> Published:
    return await _publish_op(
        records, caller, project_id, object_id(body.name, "Op"), body.source_code or PLACEHOLDER_SOURCE
    )


async def _op_record(records: Records, caller: Caller, project_id: str, version: Version) -> Json:
    return {**version.head(), "code": await _read_source(records, caller, project_id, version)}


@ops_router.get("/v2/{entity}/{project}/ops/{object_id}/versions/{digest}", response_model=OpReadRes)
async def op_read(
    entity: Entity,
    project: Project,
    object_id: str,
    digest: str,
    caller: Reader,
    store: StoreDep,
    records: RecordsDep,
    eager: bool = False,  # noqa: ARG001
) -> Response:
    """One version of an op; `eager` makes no difference, for the source always comes along."""
    project_id = f"{entity}/{project}"
    version = await Versions(store, caller, project_id, OPS).read(object_id, digest)
    kind = version.fields.get("weave_type")
    if version.fields.get("_type") != "CustomWeaveType" or not isinstance(kind, dict) or kind.get("type") != "Op":
        raise InvalidRequest(f"Obj {object_id}:{digest} is not an op that this route can read"[:600])
    return answer(await _op_record(records, caller, project_id, version))


async def _create_dataset(records: Records, caller: Caller, project_id: str, body: DatasetCreateBody) -> Published:
    named = {"name": body.name or "Dataset", "description": body.description}
    name = object_id(body.name, "Dataset")
    return (await publish_dataset(records, caller, project_id, name, body.rows, **named))[0]


async def _dataset_record(_records: Records, _caller: Caller, _project_id: str, version: Version) -> Json:
    return {**version.named(), "rows": version.place("rows") or ""}


async def _create_scorer(records: Records, caller: Caller, project_id: str, body: ScorerCreateBody) -> Published:
    name = object_id(body.name, "Scorer")
    score = await _publish_op(records, caller, project_id, f"{name}_score", body.op_source_code)
    summarize = await _publish_op(records, caller, project_id, f"{name}_summarize", SUMMARISE)
    fields = {
        "name": body.name,
        "description": body.description,
        "score": refs.to_external(score.ref),
        "summarize": refs.to_external(summarize.ref),
        "column_map": None,
    }
    return await _publish(records, caller, project_id, "Scorer", body.name, fields)


async def _scorer_record(_records: Records, _caller: Caller, _project_id: str, version: Version) -> Json:
    return {**version.named(), "score_op": version.place("score") or ""}


async def _create_evaluation(
    records: Records, caller: Caller, project_id: str, body: EvaluationCreateBody
) -> Published:
    internal_ref(body.dataset, "dataset")
    for place, scorer in enumerate(body.scorers or ()):
        internal_ref(scorer, f"scorers.{place}", ("object", "op"))
    if body.trials < 1:
        raise InvalidRequest(f"trials must be at least 1, not {body.trials}")
    name = object_id(body.name, "Evaluation")
    ops = {key: await records.placeholder_op(caller, project_id, f"{name}.{key}") for key in _EVALUATION_OPS}
    value = {
        "name": body.name,
        "description": body.description,
        "dataset": body.dataset,
        "scorers": body.scorers or [],
        "trials": body.trials,
        "evaluation_name": body.evaluation_name,
        "metadata": None,
        "preprocess_model_input": None,
        **{key: refs.to_external(op.ref) for key, op in ops.items()},
        **(body.eval_attributes or {}),
    }
    return await _publish(records, caller, project_id, "Evaluation", body.name, value)


async def _evaluation_record(_records: Records, _caller: Caller, _project_id: str, version: Version) -> Json:
    """The record; the TypeScript SDK leaves fields away and names one of its ops in its own way."""
    trials, listed = version.fields.get("trials"), version.fields.get("scorers")
    return {
        **version.named(),
        "dataset": version.place("dataset") or "",
        # A scorer that is stored inside the evaluation is named by its place there.
        "scorers": [
            scorer if isinstance(scorer, str) else f"{version.ref}/attr/scorers/index/{place}"
            for place, scorer in (enumerate(listed) if isinstance(listed, list) else ())
        ],
        "trials": trials if isinstance(trials, int) and not isinstance(trials, bool) else 1,
        "evaluation_name": version.text("evaluation_name"),
        "evaluate_op": version.place("evaluate"),
        "predict_and_score_op": version.place("predict_and_score") or version.place("predictAndScore"),
        "summarize_op": version.place("summarize"),
    }


async def _create_model(records: Records, caller: Caller, project_id: str, body: ModelCreateBody) -> Published:
    source = await records.put_file(caller, project_id, OP_FILE, body.source_code.encode("utf-8", "replace"))
    value = {"name": body.name, "description": body.description, "files": {OP_FILE: source}}
    return await _publish(records, caller, project_id, "Model", body.name, {**value, **(body.attributes or {})})


async def _model_record(records: Records, caller: Caller, project_id: str, version: Version) -> Json:
    source = await _read_source(records, caller, project_id, version)
    attributes = {key: value for key, value in version.fields.items() if key not in _MODEL_FIELDS}
    return {**version.named(), "source_code": source, "attributes": attributes or None}


def _of_class(name: str) -> ObjectFilter:
    """The objects with that base class, those of its subclasses included."""
    return ObjectFilter(base_object_classes=[name], is_op=False)


KINDS = (
    ObjectKind(ops_router, "op", OPS, OpCreateBody, OpReadRes, _create_op, "Store a version of an op.", _op_record),
    ObjectKind(
        datasets_router,
        "dataset",
        _of_class("Dataset"),
        DatasetCreateBody,
        DatasetReadRes,
        _create_dataset,
        "Store a table and the dataset that names it.",
        _dataset_record,
        keep_non_finite=True,
    ),
    ObjectKind(
        scorers_router,
        "scorer",
        _of_class("Scorer"),
        ScorerCreateBody,
        ScorerReadRes,
        _create_scorer,
        "Store a version of a scorer and its ops.",
        _scorer_record,
        ref_field="scorer",
    ),
    ObjectKind(
        evaluations_router,
        "evaluation",
        _of_class("Evaluation"),
        EvaluationCreateBody,
        EvaluationReadRes,
        _create_evaluation,
        "Store a version of an evaluation, with placeholders for its ops.",
        _evaluation_record,
        ref_field="evaluation_ref",
    ),
    ObjectKind(
        models_router,
        "model",
        _of_class("Model"),
        ModelCreateBody,
        ModelReadRes,
        _create_model,
        "Store a version of a model.",
        _model_record,
        ref_field="model_ref",
    ),
)
for _kind in KINDS:
    serve(_kind)
ROUTERS = tuple(kind.router for kind in KINDS)
