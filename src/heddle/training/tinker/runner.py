"""Does the requests of Tinker's protocol: those of runs one after the other in a trainer, samples side by side."""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import orjson

from heddle.auth import Caller
from heddle.errors import HeddleError
from heddle.http.routing import off_loop
from heddle.jobs.runner import Attempt, Runner
from heddle.paths import model_folder
from heddle.store.control.coordination import RUNNING
from heddle.store.control.tinker import REFUSED, SAMPLE, TRAINING, RequestRow, RunRow, SamplerRow, SessionRow
from heddle.store.control.training import STEP, TINKER, EventRow, JobConfig, JobRow, Resources
from heddle.store.control.training_models import ModelRow
from heddle.training import files
from heddle.training.messages import Answer, Behind, Failed, Operation, Performed, Span
from heddle.training.models import resources
from heddle.training.queue.events import TrainingMetrics
from heddle.training.queue.process import ProcessEnded, Slot
from heddle.training.queue.supervisor import Supervisor
from heddle.training.tinker.schemas import Tensor
from heddle.training.tinker.service import SCHEME, UNNAMED, WORK, Tinker, job_id, saved_row
from heddle.wire import refs, times
from heddle.wire.jsontypes import Json
from heddle.wire.keys import ROLES, Grant
from heddle.wire.training import BaseModel

if TYPE_CHECKING:
    from heddle.training.tinker.samples import Samples

KEPT = times.DAY
"""How long results wait for their client."""
UNNAMED_KEPT = 32
"""Weights without a name that a run keeps for its samplers."""
PLACES = 64
"""Samples that are drawn side by side."""
FIRST_PAUSE = 1.0
_MASK = 2**63 - 1


class Impossible(Exception):
    """A request that can never be done; the text is for the client."""


@dataclass(frozen=True, slots=True)
class Done:
    """A request that was done, up to which request its run is kept, and the optimizer step that it was."""

    result: bytes
    kept: int | None = None
    step: tuple[JobRow, EventRow] | None = None


_FAULTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Faults of ours, which the same request meets again."""


class Requests(Runner[RequestRow]):
    """What both kinds of requests have in common: they end with a result or an error, and are begun again otherwise."""

    logger = logging.getLogger("heddle.training")
    queue: str

    def __init__(self, tinker: Tinker, places: int) -> None:
        super().__init__(tinker.requests, places, tinker.settings.training_lease)
        self._tinker = tinker
        self._rows = tinker.requests
        tinker.wake[self.queue] = self.wake

    async def perform(self, row: RequestRow) -> Done:
        """Do a request. Raises Impossible, HeddleError, ProcessEnded."""
        raise NotImplementedError

    async def _open_session(self, session_id: str, what: str) -> SessionRow:
        """The session of `what`; raises Impossible where it was deleted or its key has ended."""
        session = await self._tinker.rows.session(session_id)
        if session is None:
            raise Impossible(f"the {what} was deleted")
        if problem := await self._tinker.sessions.find_problem(session):
            raise Impossible(problem)
        return session

    async def _work(self, attempt: Attempt[RequestRow]) -> None:
        row = attempt.job
        try:
            done = await self.perform(row)
        except Impossible as error:
            await self._end(row, str(error), True)
        except HeddleError as error:
            if error.status == 429 or error.status >= 500:
                raise
            await self._end(row, error.reason, True)
        except (ProcessEnded, *_FAULTS) as error:
            await self._rows.count_attempt(row)
            if row.attempts + 1 < self._tinker.settings.training_attempts:
                raise
            told = str(error) if isinstance(error, ProcessEnded) else "Internal server error"
            await self._end(row, told, False)
        else:
            await self._rows.finish(row, times.now(), done.result, kept=done.kept, step=done.step)
            self._tinker.tell(row.id)

    async def _end(self, row: RequestRow, error: str, is_users_fault: bool) -> None:
        await self._rows.finish(row, times.now(), None, error, is_users_fault)
        self._tinker.tell(row.id)

    async def _failed(self, attempt: Attempt[RequestRow], error: Exception) -> float:
        with contextlib.suppress(HeddleError):
            await self._rows.release_leases(attempt.job.id)
        is_known = isinstance(error, HeddleError | ProcessEnded)
        self.logger.warning("%s will be retried: %s", attempt.job.id, error, exc_info=not is_known)
        return FIRST_PAUSE

    async def _give_back(self, attempt: Attempt[RequestRow]) -> None:
        with contextlib.suppress(HeddleError):
            await self._rows.release_leases(attempt.job.id)


class TrainingRequests(Requests):
    """The requests of runs: one at a time, in a process that keeps the runs."""

    name = "tinker"
    queue = TRAINING

    def __init__(self, tinker: Tinker, slot: Slot, metrics: TrainingMetrics) -> None:
        super().__init__(tinker, 1)
        self._slot = slot
        self._metrics = metrics
        self._samples: Samples | None = None
        self._tidied = 0

    async def stop(self) -> None:
        """End the process; what it held is brought back by the next one."""
        await super().stop()
        await self._slot.close()

    async def _next(self, is_full: bool) -> RequestRow | None:
        if is_full:
            return None
        return await self._rows.lease(times.now(), self._lease_seconds, self._at_work, samples=False)

    async def _rest(self) -> float:
        self._slot.rest()
        if times.now() - self._tidied > KEPT // 24:
            self._tidied = times.now()
            await self._rows.forget(times.now() - KEPT)
            for saved in await self._tinker.rows.expired(times.now()):
                await self._tinker.delete_saved(saved, "heddle")
            await self._tinker.rows.end_jobs(times.now(), times.now() - KEPT)
        return self._lease_seconds

    async def perform(self, row: RequestRow) -> Done:
        """Let the process do it, behind what it lacks of the run."""
        if row.kind == REFUSED:
            raise Impossible(row.body.decode())
        tinker = self._tinker
        run = await tinker.rows.run(row.target)
        model = None if run is None else await tinker.models.find_row(run.model_id)
        if run is None or model is None:
            raise Impossible("the model was deleted")
        await self._open_session(run.session_id, "model")
        with self._slot.busy():
            answer = await self._ask(run, model, row, run.applied)
            if isinstance(answer, Behind):
                at = answer.seq
                for earlier in await self._rows.changes_between(run.id, at, row.seq):
                    check(await self._ask(run, model, earlier, at))
                    at = earlier.seq
                answer = await self._ask(run, model, row, at)
        if await tinker.models.find_row(model.id) is None:
            await asyncio.to_thread(files.remove_deleted, tinker.data / model_folder(model.id))
            raise Impossible("the model was deleted")
        done = check(answer)
        save = SAVES.get(row.kind)
        result = done.result if save is None else orjson.dumps(await save(self, run, model, row))
        step = None if done.step is None else self._show_step(run, model, row, done.step, (await self._place(model))[1])
        return Done(result, done.kept, step)

    def _show_step(
        self, run: RunRow, model: ModelRow, row: RequestRow, told: Json, held: Resources
    ) -> tuple[JobRow, EventRow]:
        """An optimizer step as one of the job that the run is."""
        metrics = {name: value for name, value in told.items() if name != "settings"}
        self._metrics.count_tokens(metrics)
        self._metrics.stepped(metrics)
        job = JobRow(
            id=job_id(model.id),
            model_id=model.id,
            kind=TINKER,
            state=RUNNING,
            config=cast(JobConfig, {"settings": told["settings"], "source": None, **held}),
            payload="",
            metrics=metrics,
            created_at=run.created_at,
            created_by=model.created_by,
            started_at=run.created_at,
        )
        return job, EventRow(job.id, row.seq, f"{job.id}:{row.seq}", STEP, told, times.now())

    async def _place(self, model: ModelRow) -> tuple[BaseModel, Resources]:
        """The base model, and what it is trained with."""
        tinker = self._tinker
        bases = {base.id: base for base in await tinker.policies.base_models()}
        if model.base_model not in bases:
            raise Impossible(f"the base model {model.base_model} is no longer served")
        base = bases[model.base_model]
        return base, resources(tinker.settings, base, (await tinker.models.shape(base)).parameters)

    async def _find_spans(self, run: RunRow, model: ModelRow, row: RequestRow) -> tuple[Span, ...]:
        """The tokens that the run's own weights sampled, as far as the requests are known."""
        if row.kind != "forward_backward":
            return ()
        from heddle.training.tinker.messages import read_data_request
        from heddle.training.tinker.samples import Samples

        self._samples = self._samples or Samples(self._rows)
        found = await self._samples.find(run, await off_loop(len(row.body), lambda: read_data_request(row.body)))
        steps = {step for *_, step in found}
        known = [step for step in steps if step < row.seq and not await self._rows.has_loaded(run.id, step)]
        jobs = self._tinker.jobs
        lags = {step: await jobs.count_steps(job_id(model.id), step, row.seq) for step in known}
        return tuple(Span(datum, start, length, lags[step]) for datum, start, length, step in found if step in lags)

    async def _ask(self, run: RunRow, model: ModelRow, row: RequestRow, after: int) -> Answer:
        tinker = self._tinker
        base, held = await self._place(model)
        folder = tinker.data / model_folder(model.id)
        place = None
        if row.kind in SAVES:
            place = tinker.data / files.checkpoint_folder(model.id, row.seq)
            place.parent.mkdir(parents=True, exist_ok=True)
        elif row.kind == "load_weights":
            place = files.resolve_folder(tinker.data, orjson.loads(row.body)["folder"])
            if not place.is_dir():
                raise Impossible("the checkpoint was deleted")
        return await self._slot.ask(
            Operation(
                run=run.id,
                seq=row.seq,
                after=after,
                kind=row.kind,
                body=row.body,
                origin=str(tinker.data / files.checkpoint_folder(model.id, 0)),
                work=str(folder / WORK),
                place=None if place is None else str(place),
                base_folder=str(base.folder),
                device=held["device"],
                dtype=held["dtype"],
                threads=held["threads"],
                spans=await self._find_spans(run, model, row),
            )
        )

    async def save_state(self, run: RunRow, model: ModelRow, row: RequestRow) -> Json:
        """List what save_weights made."""
        wanted = orjson.loads(row.body)
        path = f"{SCHEME}{run.id}/weights/{wanted['path']}"
        await self._make_room(model, row, path, wanted["overwrite"])
        await self._list(run, model, row, path, "training", wanted)
        return {"path": path, "type": "save_weights"}

    async def save_external(self, run: RunRow, model: ModelRow, row: RequestRow) -> Json:
        """List what save_weights_external made."""
        wanted = orjson.loads(row.body)
        path = f"{SCHEME}{run.id}/external_weights/{wanted['path']}"
        await self._make_room(model, row, path, False)
        await self._list(run, model, row, path, "external", wanted)
        return {"path": path, "type": row.kind}

    async def save_for_sampler(self, run: RunRow, model: ModelRow, row: RequestRow) -> Json:
        """List what save_weights_for_sampler made, and make the sampler that was asked for."""
        wanted = orjson.loads(row.body)
        name, rows = wanted["path"], self._tinker.rows
        if name is not None:
            path = f"{SCHEME}{run.id}/sampler_weights/{name}"
            await self._make_room(model, row, path, False)
            await self._list(run, model, row, path, "sampler", wanted)
            return {"path": path, "type": row.kind}
        kind = "inflight" if wanted["kind"] == "inflight" else "ephemeral"
        path = f"{SCHEME}{run.id}/sampler_weights/{kind}-{row.seq}"
        await self._list(run, model, row, path, kind, wanted)
        sampler = SamplerRow(
            id=f"{run.session_id}:sample:{wanted['sampling_session_seq_id']}",
            session_id=run.session_id,
            base_model=model.base_model,
            path=path,
            follows=run.id if kind == "inflight" else None,
        )
        await rows.add_sampler(sampler)
        unnamed = [saved for saved in await rows.saved_of([run.id]) if saved.kind in UNNAMED]
        for old in unnamed[:-UNNAMED_KEPT]:
            await self._tinker.delete_saved(old, model.created_by)
        return {"sampling_session_id": sampler.id, "type": row.kind}

    async def _make_room(self, model: ModelRow, row: RequestRow, path: str, replaces: bool) -> None:
        """Take away an earlier checkpoint of a path; raises Impossible where it is to stay."""
        earlier = await self._tinker.rows.saved(path)
        if earlier is None or earlier.step == row.seq:
            return
        if not replaces:
            await asyncio.to_thread(files.remove, self._tinker.data / files.checkpoint_folder(model.id, row.seq))
            raise Impossible(f"the checkpoint {path} already exists")
        await self._tinker.delete_saved(earlier, model.created_by)

    async def _list(self, run: RunRow, model: ModelRow, row: RequestRow, path: str, kind: str, wanted: Json) -> None:
        told = (wanted["ttl_seconds"], wanted.get("user_metadata"))
        await self._tinker.add_saved(model, saved_row(run, row.seq, path, kind, row.created_at, *told))


Save = Callable[[TrainingRequests, RunRow, ModelRow, RequestRow], Any]
SAVES: dict[str, Save] = {
    "save_weights": TrainingRequests.save_state,
    "save_weights_external": TrainingRequests.save_external,
    "save_weights_for_sampler": TrainingRequests.save_for_sampler,
}


def check(answer: Answer) -> Performed:
    """What was done; raises Impossible for what never can be, ProcessEnded for what makes no sense."""
    if isinstance(answer, Failed):
        raise Impossible(answer.message)
    if not isinstance(answer, Performed):
        raise ProcessEnded(f"the training process returned {type(answer).__name__}")
    return answer


class SampleRequests(Requests):
    """Samples, drawn by the engine; the seed follows from the request, so that the same one draws the same again."""

    name = "sample"
    queue = SAMPLE

    def __init__(self, tinker: Tinker) -> None:
        super().__init__(tinker, PLACES)

    async def _next(self, is_full: bool) -> RequestRow | None:
        if is_full:
            return None
        return await self._rows.lease(times.now(), self._lease_seconds, self._at_work, samples=True)

    async def _rest(self) -> float:
        return self._lease_seconds

    async def perform(self, row: RequestRow) -> Done:
        """Let the model write."""
        from heddle.training.tinker.messages import Sampled, write_samples, write_targets

        rows, wanted = self._tinker.rows, orjson.loads(row.body)
        sampler = await rows.sampler(row.target)
        if sampler is None:
            raise Impossible("the sampler was deleted")
        session = await self._open_session(sampler.session_id, "sampler")
        caller = Caller(session.created_by, (Grant("", ROLES["editor"]),), session.key_id)
        body = make_body(wanted, await self._address(sampler), row.id)
        drawn = await self._tinker.policies.draw(body, caller, session.project_id)
        best = wanted["topk_sample_logprobs"]
        sequences = [
            Sampled(one.tokens, one.logprobs, one.has_stopped, [top[:best] for top in one.best] if best else None)
            for one in drawn.sequences
        ]
        hidden = len(drawn.prompt or ()) - (wanted["prompt_logprobs_last_n"] or len(drawn.prompt or ()))
        prompt = None
        if drawn.prompt and wanted["prompt_logprobs"]:
            prompt = [value if place >= hidden else None for place, value in enumerate(drawn.prompt)]
        count, ranked = wanted["topk_prompt_logprobs"], None
        if count and drawn.prompt_best is not None:
            shown = [top if place >= hidden else None for place, top in enumerate(drawn.prompt_best)]
            ranked = [None if top is None else top[:count] for top in shown]
        targets, draws = wanted.get("target_prompt_logprobs"), None
        if body.get("prompt_ids") or body.get("prompt_draws"):
            places = [(top or ())[count:] for top in (drawn.prompt_best or ())[1:]]
            named = [len(row) for row in body.get("prompt_ids") or [()] * len(places)]
            if targets is not None:
                found = [[value for _, value in top[:size]] for top, size in zip(places, named, strict=True)]
                targets = write_targets(targets, found)
            if body.get("prompt_draws"):
                draws = [top[size:] for top, size in zip(places, named, strict=True)]
        return Done(write_samples(sequences, prompt, ranked, drawn.cached_tokens, targets, draws))

    async def _address(self, sampler: SamplerRow) -> str:
        """What inference calls the weights of a sampler; raises Impossible when they are gone."""
        rows = self._tinker.rows
        if sampler.path is None:
            return sampler.base_model
        if sampler.follows is not None:
            newest = [saved for saved in await rows.saved_of([sampler.follows]) if saved.kind == "inflight"][-1:]
            saved = newest[0] if newest else None
        else:
            saved = await rows.saved(sampler.path)
        run = None if saved is None else await rows.run(saved.run_id)
        model = None if run is None else await self._tinker.models.find_row(run.model_id)
        if saved is None or model is None:
            raise Impossible(f"the weights {sampler.path} were deleted")
        return f"{refs.ARTIFACT}{model.project_id}/{model.name}:step{saved.step}"


def make_body(wanted: Json, model: str, request_id: str) -> Json:
    """The body of /v1/completions for a request for samples."""
    params = wanted["sampling_params"]
    seed, stop = params["seed"], params["stop"]
    if seed is None:
        seed = int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:8], "big")
    body: Json = {
        "model": model,
        "prompt": [token for chunk in wanted["prompt"]["chunks"] for token in chunk["tokens"]],
        "n": wanted["num_samples"],
        "max_tokens": params["max_tokens"] or _MASK >> 32,
        "temperature": params["temperature"],
        "top_p": params["top_p"],
        "top_k": max(params["top_k"], 0),
        "seed": seed & _MASK,
        "logprobs": wanted["topk_sample_logprobs"],
        "skip_special_tokens": False,
        "return_token_ids": True,
    }
    if wanted["prompt_logprobs"] or wanted["topk_prompt_logprobs"]:
        body["prompt_logprobs"] = wanted["topk_prompt_logprobs"]
    if wanted.get("target_prompt_logprobs"):
        body["prompt_ids"] = Tensor.model_validate(wanted["target_prompt_logprobs"]).rows()
    if wanted["prompt_alt_tokens_k"]:
        body["prompt_draws"] = wanted["prompt_alt_tokens_k"]
    if stop == []:
        body["ignore_eos"] = True
    elif isinstance(stop, str) or (stop and isinstance(stop[0], str)):
        body["stop"] = stop
    elif stop:
        body["stop_token_ids"] = stop
    return body


class TinkerWork:
    """Both kinds of work, started and stopped with the server."""

    def __init__(self, tinker: Tinker, supervisor: Supervisor) -> None:
        self._tinker = tinker
        self._kinds = (
            TrainingRequests(tinker, supervisor.make_slot(tinker.settings.training_lease), supervisor.metrics),
            SampleRequests(tinker),
        )

    async def start(self) -> None:
        """Go on with what an earlier server left, where this one trains."""
        if self._tinker.is_possible:
            await self._tinker.requests.release_all_leases()
            for kind in self._kinds:
                await kind.start()

    async def stop(self) -> None:
        """Stop; what is not done is done by the next server."""
        for kind in self._kinds:
            await kind.stop()
