"""POST /image/create: images from any provider of the settings that speaks OpenAI's protocol.

Whatever goes wrong is an answer with `error` (contract: trace-evals, section 8).
"""

from fastapi import APIRouter, Request, Response

from heddle.auth import Caller
from heddle.errors import InvalidRequest
from heddle.http import RecordsDep, RequestModel, ResponseModel, SettingsDep, StoreDep, Writer, answer, group
from heddle.inference.api.chat import while_connected
from heddle.inference.api.traced_request import TracedRequest
from heddle.inference.dependencies import InferenceDep
from heddle.inference.providers.account import ProviderAccount
from heddle.inference.providers.client import Provider, ProviderClient, configured
from heddle.inference.providers.image_fetch import decoded, fetch
from heddle.inference.providers.targets import Target, Targets
from heddle.inference.service import Inference
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.wire.content import ContentObject, sniff
from heddle.wire.inference import ProviderFailed
from heddle.wire.jsontypes import Json
from heddle.wire.records import Records

router: APIRouter = group("Images")

MOST_IMAGES = 10
_PATH = "images/generations"
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
    wanted = ImageRequest(settings, store, inference, records, caller, body)
    response = await while_connected(request, wanted.whole())
    return answer({"response": response, "weave_call_id": wanted.call_id if wanted.tracked else None})


class ImageRequest(TracedRequest):
    """One request, from its model to its stored call."""

    op_name = "weave.image_generation_create"
    kind = "image"

    def __init__(
        self,
        settings: Settings,
        store: Store,
        inference: Inference,
        records: Records,
        caller: Caller,
        body: ImageGenerationCreateReq,
    ) -> None:
        tracked = body.track_llm_call is not False
        super().__init__(settings, store, inference, caller, body.project_id, body.inputs.model, tracked)
        self._records = records
        self._asked = body.inputs

    def inputs(self) -> Json:
        return self._asked.model_dump(exclude_none=True)

    async def answered(self) -> Json:
        for name in ("model", "prompt"):
            if not getattr(self._asked, name).strip():
                raise InvalidRequest(f"no {name} specified", param=name)
        count = self._asked.n
        if count is not None and not 1 <= count <= MOST_IMAGES:
            raise InvalidRequest(f"n is {count}, from 1 to {MOST_IMAGES} images can be made at once", param="n")
        self.target = await self._find(self._asked.model)
        provider = self.target.provider
        assert provider is not None, "_find refuses models without one"
        request: Json = {"model": self.target.model, "prompt": self._asked.prompt}
        if count is not None:
            request["n"] = count
        async with ProviderAccount(self.accounts, self.completion(provider, request, traced=True)) as account:
            made = await ProviderClient(provider, self.target.headers).ask(_PATH, request)
            response = _normalised(made, self.target.model)
            account.response = {"usage": response.get("usage")}
            response["data"] = [await self._kept(item, provider) for item in _items(made)]
            return response

    async def _find(self, model: str) -> Target:
        settings = self.settings
        target = await Targets(settings, self.tables, self.internal_project).find(model, None)
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
            await self._records.put_file(self.caller, self.project, name, part)
        return made.value


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
