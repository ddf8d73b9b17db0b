"""A request that is answered here or by a provider, and shown as a call of the project's trace."""

import asyncio
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from typing import Any

from heddle.auth import Caller
from heddle.errors import ExtraMissing, HeddleError, ValidationFailed
from heddle.inference.providers.client import Provider
from heddle.inference.providers.targets import Target
from heddle.inference.service import Inference
from heddle.inference.tracing import usage_entry
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.wire import ids
from heddle.wire.inference import Completion, InferenceCall
from heddle.wire.jsontypes import Json

GONE = "The client went away"


class TracedRequest(ABC):
    """One request, from its model to its stored call; what goes wrong is an answer with `error`."""

    op_name: str
    kind: str

    def __init__(
        self,
        settings: Settings,
        tables: Store,
        inference: Inference,
        caller: Caller,
        project: str,
        model: str,
        tracked: bool,
    ) -> None:
        """`project` is `team/project`; raises Forbidden when it is beyond the key's reach."""
        self.settings, self.tables, self.inference = settings, tables, inference
        self.caller, self.project = caller, project
        self.internal_project = caller.open(project)
        self.accounts = inference.accounts
        self.tracked = tracked
        self.model = model
        self.target = Target(model)
        self.call_id, self.trace_id = ids.uuid7(), ids.uuid7()
        self.started_at = datetime.now(UTC)
        self.failure: HeddleError | None = None

    @abstractmethod
    async def answered(self) -> Json:
        """The answer; raises HeddleError."""

    @abstractmethod
    def inputs(self) -> Json:
        """What the call shows as its inputs."""

    def attributes(self) -> Json:
        """What the call shows beside its kind, model and provider."""
        return {}

    def place(self) -> dict[str, str | None]:
        """Parent, thread and turn of the call."""
        return {}

    async def whole(self) -> Json:
        """The answer, `{"error": text}` when there is none; the call is stored by then. Raises ExtraMissing."""
        try:
            response = await self.answered()
        except ExtraMissing:
            raise
        except HeddleError as error:
            self.failure = error
            response = self.refusal()
        except asyncio.CancelledError:
            self.failure = HeddleError(GONE)
            await self.store(self.refusal())
            raise
        await self.store(response)
        return response

    def refusal(self) -> Json:
        """The answer that tells the failure."""
        return {"error": failure_text(self.failure) if self.failure is not None else "The stream was empty"}

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
                exception=failure_text(self.failure) if self.failure is not None else None,
                attributes={name: value for name, value in (named | self.attributes()).items() if value is not None},
                usage=usage_entry(target.model, response),
                **self.place(),
            )
        )


def failure_text(failure: HeddleError) -> str:
    """The text of a failure; one of validation names the places."""
    if not isinstance(failure, ValidationFailed):
        return failure.reason
    return "; ".join(f"{'.'.join(str(part) for part in item['loc'][1:])}: {item['msg']}" for item in failure.detail)
