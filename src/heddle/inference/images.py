"""POST /image/create: images from any provider of the settings that speaks OpenAI's protocol.

Whatever goes wrong is an answer with `error` (contract: trace-evals, section 8).
"""

import asyncio
from datetime import UTC, datetime

from fastapi import APIRouter, Request, Response

from heddle.auth import Caller
from heddle.errors import ExtraMissing, HeddleError, InvalidRequest
from heddle.http import RecordsDep, RequestModel, ResponseModel, SettingsDep, StoreDep, Writer, answer, group
from heddle.inference.chat import while_connected
from heddle.inference.dependencies import InferenceDep
from heddle.inference.image_fetch import decoded, fetch
from heddle.inference.provider_account import ProviderAccount
from heddle.inference.providers import Provider, ProviderClient, configured
from heddle.inference.service import Inference
from heddle.inference.targets import Target, Targets
from heddle.inference.tracing import usage_entry
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.wire import ids
from heddle.wire.content import ContentObject, sniff
from heddle.wire.inference import Completion, InferenceCall, ProviderFailed
from heddle.wire.jsontypes import Json
from heddle.wire.records import Records

router: APIRouter = group("Images")

OP_NAME = "weave.image_generation_create"
MOST_IMAGES = 10
_PATH = "images/generations"
_GONE = "The client went away"
_UNSET = (
    "no image model configured: name a provider of this server's setting 'providers' before the model "
    "(provider/model), or set 'image_provider'"
)
_USAGE = (
    ("prompt_tokens", "input_tokens"),
    ("completion_tokens", "output_tokens"),
)


class ImageGenerationRequestInputs(RequestModel):
    """What to draw."""

    model: str
    prompt: str
    n: int | None = None


class ImageGenerationCreateReq(RequestModel):
    """Body of /image/create; the call is stored under the caller's own name."""

    project_id: str
    inputs: ImageGenerationRequestInputs
    wb_user_id: str | None = None
    track_llm_call: bool | None = True


class ImageGenerationCreateRes(ResponseModel):
    """The provider's answer with its images as stored content, or `{"error": text}`; the call when it was tracked."""

    response: Json
    weave_call_id: str | None = None


@router.post("/image/create", response_model=ImageGenerationCreateRes)
async def image_create(
    request: Request,
    body: ImageGenerationCreateReq,
    caller: Writer,
    settings: SettingsDep,
    store: StoreDep,
    records: RecordsDep,
    inference: InferenceDep,
) -> Response:
    """Let a provider make images, keep them as files, and store a call."""
    work = ImageWork(settings, store, records, inference, caller, body)
    response = await while_connected(request, work.whole())
    return answer({"response": response, "weave_call_id": work.call_id if work.tracked else None})


class ImageWork:
    """One request, from its model to its stored call."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        records: Records,
        inference: Inference,
        caller: Caller,
        body: ImageGenerationCreateReq,
    ) -> None:
        self._settings, self._store, self._records, self._inference = settings, store, records, inference
        self._caller, self._body = caller, body
        self._project = caller.open(body.project_id)
        self.tracked = body.track_llm_call is not False
        self.call_id = ids.uuid7()
        self._started_at = datetime.now(UTC)
        self._target = Target(body.inputs.model)

    async def whole(self) -> Json:
        """The answer, `{"error": text}` when there is none; the call is stored by then."""
        failure: HeddleError | None = None
        try:
            response = await self._made()
        except ExtraMissing:
            raise
        except HeddleError as error:
            failure, response = error, {"error": error.reason}
        except asyncio.CancelledError:
            await self._keep({"error": _GONE}, HeddleError(_GONE))
            raise
        await self._keep(response, failure)
        return response

    async def _made(self) -> Json:
        inputs = self._body.inputs
        for name in ("model", "prompt"):
            if not getattr(inputs, name).strip():
                raise InvalidRequest(f"no {name} specified", param=name)
        if inputs.n is not None and not 1 <= inputs.n <= MOST_IMAGES:
            raise InvalidRequest(f"n is {inputs.n}, from 1 to {MOST_IMAGES} images can be made at once", param="n")
        self._target = await self._find(inputs.model)
        provider = self._target.provider
        assert provider is not None, "_find refuses models without one"
        request: Json = {"model": self._target.model, "prompt": inputs.prompt}
        if inputs.n is not None:
            request["n"] = inputs.n
        async with ProviderAccount(self._inference.accounts, self._record(provider, request)) as account:
            made = await ProviderClient(provider, self._target.headers).ask(_PATH, request)
            response = _normalised(made, self._target.model)
            account.response = {"usage": response.get("usage")}
            response["data"] = [await self._kept(item, provider) for item in _items(made)]
            return response

    async def _find(self, model: str) -> Target:
        settings = self._settings
        target = await Targets(settings, self._store, self._project).find(model, None)
        if target.provider is not None:
            return target
        chosen = configured(settings).get(settings.image_provider)
        if chosen is None:
            raise InvalidRequest(_UNSET, param="model")
        return Target(model, chosen)

    async def _kept(self, item: Json, provider: Provider) -> Json:
        """One image with its bytes in the project's files."""
        kept = dict(item)
        for name, form in (("b64_json", "base64"), ("url", "url")):
            value = kept.get(name)
            if not isinstance(value, str):
                continue
            content = decoded(value) if name == "b64_json" else await fetch(value, provider.base_url)
            kept[name] = await self._stored(content, form)
        return kept

    async def _stored(self, content: bytes, form: str) -> Json:
        mimetype = sniff(content)
        if not mimetype.startswith("image/"):
            raise ProviderFailed("The provider answered something that is no image")
        made = ContentObject(content, mimetype, form)
        for _, name, part in made.files:
            await self._records.put_file(self._caller, self._body.project_id, name, part)
        return made.value

    def _record(self, provider: Provider, request: Json) -> Completion:
        return Completion(
            request_id=self.call_id,
            caller=self._caller,
            project=self._body.project_id,
            model=self._body.inputs.model,
            served=self._target.model,
            base=f"provider:{provider.name}",
            started_at=self._started_at,
            request=request,
            traced=True,
        )

    async def _keep(self, response: Json, failure: HeddleError | None) -> None:
        """Keep the call, when it is tracked; raises HeddleError when it cannot be."""
        sink, target = self._inference.accounts.sink, self._target
        if not self.tracked or sink is None:
            return
        attributes = {"kind": "image", "model": target.model}
        if target.provider is not None:
            attributes["provider"] = target.provider.name
        await sink.store(
            InferenceCall(
                caller=self._caller,
                project=self._body.project_id,
                op_name=OP_NAME,
                id=self.call_id,
                trace_id=ids.uuid7(),
                started_at=self._started_at,
                ended_at=datetime.now(UTC),
                inputs=self._body.inputs.model_dump(exclude_none=True),
                output=response,
                exception=failure.reason if failure is not None else None,
                attributes=attributes,
                usage=usage_entry(target.model, response),
            )
        )


def _items(made: Json) -> list[Json]:
    """The images of an answer; raises ProviderFailed when there are none."""
    data = made.get("data")
    items = [item for item in data if isinstance(item, dict)] if isinstance(data, list) else []
    if not items:
        raise ProviderFailed("The provider answered no images")
    return items[:MOST_IMAGES]


def _normalised(made: Json, model: str) -> Json:
    """The answer with the model, and its usage under the names of chat completions."""
    response = {**made, "model": model}
    usage = made.get("usage")
    if isinstance(usage, dict):
        counts = {name: _count(usage, name, other) for name, other in _USAGE}
        total = _count(usage, "total_tokens", "")
        response["usage"] = {**counts, "total_tokens": total or sum(counts.values())}
    else:
        response.pop("usage", None)
    return response


def _count(usage: Json, name: str, other: str) -> int:
    for value in (usage.get(name), usage.get(other)):
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return 0
