"""A request that is answered here or by a provider, and shown as a call of the project's trace."""

import asyncio
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from typing import Any

from heddle.auth import Caller
from heddle.errors import ExtraMissing, HeddleError
from heddle.http.routing import ProjectReq
from heddle.inference.accounts import ClientGone
from heddle.inference.providers import Provider, Target
from heddle.inference.service import Inference
from heddle.inference.tracing import usage_entry
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.wire import times
from heddle.wire.inference import Completion, InferenceCall
from heddle.wire.jsontypes import Json


class TracedBody(ProjectReq):
    """What the bodies of traced requests have in common; the call is stored under the caller's own name."""

    inputs: Any
    wb_user_id: str | None = None
    track_llm_call: bool | None = True


class TracedRequest(ABC):
    """One request, from its model to its stored call; what goes wrong is an answer with `error`."""

    op_name: str
    kind: str

    def __init__(
        self, settings: Settings, tables: Store, inference: Inference, caller: Caller, body: TracedBody
    ) -> None:
        """Raises Forbidden when the project is beyond the key's reach."""
        self.settings, self.tables, self.inference = settings, tables, inference
        self.caller, self.project = caller, body.project_id
        self.internal_project = caller.open(body.project_id)
        self.accounts = inference.accounts
        self.tracked = body.track_llm_call is not False
        self.model: str = body.inputs.model
        self.target = Target(self.model)
        self.call_id, self.trace_id = times.uuid7(), times.uuid7()
        self.started_at = datetime.now(UTC)
        self.failure: HeddleError | None = None

    @abstractmethod
    async def run(self) -> Json:
        """The answer; raises HeddleError."""

    @abstractmethod
    def inputs(self) -> Json:
        """What the call shows as its inputs."""

    def attributes(self) -> Json:
        """What the call shows beside its kind, model and provider."""
        return {}

    def trace_position(self) -> dict[str, str | None]:
        """Parent, thread and turn of the call."""
        return {}

    async def respond(self) -> Json:
        """The answer, `{"error": text}` when there is none; the call is stored by then. Raises ExtraMissing."""
        try:
            response = await self.run()
        except ExtraMissing:
            raise
        except HeddleError as error:
            self.failure = error
            response = self.error_body()
        except asyncio.CancelledError:
            self.failure = ClientGone("The client went away")
            await self.store(self.error_body())
            raise
        await self.store(response)
        return response

    def error_body(self) -> Json:
        """The answer that tells the failure."""
        return {"error": self.failure.reason if self.failure is not None else "The stream was empty"}

    def completion(self, provider: Provider, request: Json, **more: Any) -> Completion:
        """The record of an answer of a provider, for the accounts."""
        return Completion(
            request_id=self.call_id,
            caller=self.caller,
            project=self.project,
            model=self.model,
            served=self.target.model,
            base=f"provider:{provider.name}",
            started_at=self.started_at,
            request=request,
            **more,
        )

    async def store(self, response: Json) -> None:
        """Keep the call, when it is tracked; raises HeddleError when it cannot be."""
        if not self.tracked or self.accounts.sink is None:
            return
        target = self.target
        named = {"kind": self.kind, "model": target.model, "provider": target.provider and target.provider.name}
        await self.accounts.sink.store(
            InferenceCall(
                caller=self.caller,
                project=self.project,
                op_name=self.op_name,
                id=self.call_id,
                trace_id=self.trace_id,
                started_at=self.started_at,
                ended_at=datetime.now(UTC),
                inputs=self.inputs(),
                output=response,
                exception=self.failure.reason if self.failure is not None else None,
                attributes={name: value for name, value in (named | self.attributes()).items() if value is not None},
                usage=usage_entry(target.model, response),
                **self.trace_position(),
            )
        )
