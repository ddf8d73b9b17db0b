"""The requests of Tinker's protocol on the weights of runs: many runs side by side on one base model.

The same requests in the same order give the same bytes, whatever other runs do and however often a process ends: a run
is brought back from its last snapshot by doing again what came behind it. The losses are sums over tokens, as Tinker's
documentation defines them (https://tinker-docs.thinkingmachines.ai/tinker/losses); gradients add up until a step.
"""

import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from heddle.models.interfaces import ModelError
from heddle.models.scoring import KnownSequence
from heddle.training.files import add_snapshot, make_whole, snapshots
from heddle.training.losses.tinker import LOSSES
from heddle.training.messages import Behind, Failed, Operation, Performed
from heddle.training.sequences import TrainingError
from heddle.training.tinker.messages import Array, DataRequest, Datum, read_data_request, write_outputs
from heddle.training.trainer.attention import Segments
from heddle.training.trainer.loss import Tokens
from heddle.training.trainer.models import Layout, find_sampled
from heddle.training.trainer.packing import gather
from heddle.training.trainer.policy import (
    LARGEST_RATE,
    OPTIMIZER,
    AdamW,
    Adapter,
    Policy,
    State,
    joint_norm,
    read_adapter,
    read_moments,
    read_state,
    write_moments,
    write_state,
)
from heddle.training.trainer.run import SNAPSHOT_SHARE, PolicyCache, make_deterministic
from heddle.training.trainer.step_metrics import StepMetrics, find_trained
from heddle.wire.jsontypes import Json

CHUNK = 1024
"""Tokens whose logits are in memory at once."""
TOKENS_AT_ONCE = 8192
"""Of data whose gradients are computed together."""
MOST_BYTES = 2 << 30
"""Of the runs that are held; those that were asked for longest ago are brought back when they are asked for again."""
TENSORS_OF_RUN = 4
"""Weights, gradient, two moments."""


@dataclass(slots=True)
class Run:
    """What the requests so far have made of a run."""

    adapter: Adapter
    optimizer: AdamW
    seq: int
    saved_at: float
    cost: float = 0.0
    """Seconds that a snapshot takes."""
    metrics: StepMetrics = field(default_factory=StepMetrics)
    """Of the gradient that has been gathered."""
    step: Json | None = None
    """What there is to tell of the optimizer step that was taken last."""

    @property
    def bytes(self) -> int:
        """Memory that it takes, about."""
        return TENSORS_OF_RUN * sum(tensor.nbytes for tensor in self.adapter.parameters())

    def write(self, folder: Path) -> None:
        """Write the weights, the optimizer and its count of steps into a folder that exists."""
        self.adapter.write(folder)
        write_moments(folder, self.adapter, self.optimizer)
        write_state(folder, State(optimizer_steps=self.optimizer.steps))


def read_run(folder: Path, device: torch.device, seq: int, with_optimizer: bool = True) -> Run:
    """Read what a folder holds; raises ModelError."""
    adapter = read_adapter(folder, device)
    optimizer = AdamW([tensor.requires_grad_(True) for tensor in adapter.parameters()], 0.0)
    if with_optimizer and (folder / OPTIMIZER).is_file():
        optimizer.steps = read_state(folder).optimizer_steps
        read_moments(folder, adapter, optimizer)
    return Run(adapter, optimizer, seq, time.monotonic())


class Runs:
    """The runs that a process holds, those last that were asked for last."""

    def __init__(self, cache: PolicyCache) -> None:
        self._cache = cache
        self._runs: dict[str, Run] = {}

    def perform(self, operation: Operation) -> Performed | Behind | Failed:
        """Do one request. `Failed` is for what would fail again; the run is then as it was before."""
        make_deterministic(operation.threads, operation.device)
        policy = self._cache.load(operation.base_folder, operation.device, operation.dtype)
        run = self._runs.pop(operation.run, None)
        if run is None or run.seq != operation.after:
            run = bring_back(operation, policy)
        # What fails in the middle is not held: it comes back from what is durable.
        is_held = run.seq == operation.after
        if not is_held:
            self._hold(operation.run, run)
            return Behind(run.seq)
        policy.adapted.use(run.adapter)
        try:
            run, result = HANDLERS[operation.kind](operation, run, policy)
        except (TrainingError, ModelError) as error:
            return Failed(str(error))
        self._hold(operation.run, run)
        step, run.step = run.step, None
        return Performed(result, count_kept(Path(operation.work)), step)

    def _hold(self, name: str, run: Run) -> None:
        self._runs[name] = run
        while len(self._runs) > 1 and sum(held.bytes for held in self._runs.values()) > MOST_BYTES:
            del self._runs[next(iter(self._runs))]


def bring_back(operation: Operation, policy: Policy) -> Run:
    """The run from its newest snapshot that holds nothing behind `after`, or from its beginning."""
    found = [(seq, folder) for seq, folder in snapshots(Path(operation.work)) if seq <= operation.after]
    seq, folder = found[-1] if found else (0, Path(operation.origin))
    return read_run(folder, policy.model.device, seq)


def count_kept(work: Path) -> int:
    """The requests that need not be done again: of the older snapshot, as the newest may hold one not yet told."""
    found = snapshots(work)
    return found[-2][0] if len(found) > 1 else 0


def _compute(operation: Operation, run: Run, policy: Policy) -> tuple[Run, bytes]:
    """forward_backward, and forward: outputs per datum and the sum of the losses."""
    request = read_data_request(operation.body)
    began, outputs, total, number, metrics = time.perf_counter(), [], 0.0, 0, run.metrics
    with torch.set_grad_enabled(not request.forward_only):
        for batch in gather(request.data, lambda datum: datum.inputs["target_tokens"].size, TOKENS_AT_ONCE):
            logprobs, entropies = policy.model.score(lay_out(batch, policy.model.device), CHUNK)
            sizes = [datum.inputs["target_tokens"].size for datum in batch]
            given = [read_inputs(datum, logprobs.device) for datum in batch]
            scored = take_sampled(batch, given, torch.split(logprobs.double(), sizes), run.adapter, policy)
            losses = [judge(request, inputs, new) for inputs, new in zip(given, scored, strict=True)]
            loss = torch.stack([terms.sum() for terms in losses]).sum()
            if not bool(torch.isfinite(loss)):
                raise TrainingError(f"the loss is {float(loss.detach())}")
            if not request.forward_only:
                loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
            for datum, inputs, new, entropy, terms in zip(
                batch, given, scored, torch.split(entropies, sizes), losses, strict=True
            ):
                outputs.append(show(request, datum, new.detach(), terms.detach()))
                if not request.forward_only:
                    spans = [span for span in operation.spans if span.datum == number]
                    computed = (new.detach(), entropy.detach(), terms.detach())
                    metrics.add(request.loss, request.config, inputs, computed, spans)
                number += 1
    if not request.forward_only:
        if not bool(torch.isfinite(joint_norm(run.optimizer.gradients()))):
            raise TrainingError("the gradient is not finite")
        run.seq = operation.seq
        metrics.bits = 8.0 * next(policy.model.module.parameters()).itemsize
        metrics.sums["length"] += sum(len(datum.tokens) for datum in request.data)
        metrics.sums["seconds"] += time.perf_counter() - began
    return run, write_outputs(outputs, {"loss:sum": total})


def read_inputs(datum: Datum, device: torch.device) -> dict[str, Tensor]:
    """What a datum gives beside its targets, float64."""
    return {
        name: torch.from_numpy(np.asarray(array, np.float64)).to(device)
        for name, array in datum.inputs.items()
        if name != "target_tokens"
    }


def take_sampled(
    batch: Sequence[Datum],
    given: Sequence[Mapping[str, Tensor]],
    scored: Sequence[Tensor],
    adapter: Adapter,
    policy: Policy,
) -> list[Tensor]:
    """The policy's logprobs of each datum, float64, those of answers that this policy seems to have sampled with the
    bits of the engine's pass and the gradient of the trainer's: a ratio to what was sampled with it is exactly 1.

    Nothing but the data and the weights decides, so that a request that is done again has the same result.
    """
    dtype = next(policy.model.module.parameters()).dtype
    sequences, entries, before = [], [], b""
    for number, (datum, inputs, new) in enumerate(zip(batch, given, scored, strict=True)):
        targets = datum.inputs["target_tokens"]
        if "logprobs" not in inputs:
            continue
        places = find_trained(inputs).nonzero().squeeze(1)
        tokens = torch.from_numpy(np.append(datum.tokens, targets[-1:]))
        if not torch.equal(tokens[places + 1], torch.from_numpy(targets)[places]):
            continue
        answers = (places.diff(prepend=places[:1]) > 1).cumsum(0)
        is_own = find_sampled(new.detach()[places], inputs["logprobs"][places], answers, dtype)
        chosen = places[is_own].tolist()
        if not chosen:
            continue
        prompt = datum.tokens[: chosen[0] + 1]
        shared, before = len(prompt) if prompt.tobytes() == before else 0, prompt.tobytes()
        sequences.append(KnownSequence(tokens, [place + 1 for place in chosen], shared))
        entries.append((number, chosen))
    engine = policy.engine() if sequences else None
    if engine is None:
        return list(scored)
    try:
        with tempfile.TemporaryDirectory(prefix="heddle-adapter-") as folder:
            adapter.write(Path(folder))
            found = engine.score_sequences(sequences, Path(folder)).double()
    except ModelError:
        return list(scored)
    taken = list(scored)
    for (number, chosen), own in zip(entries, torch.split(found, [len(chosen) for _, chosen in entries]), strict=True):
        # Values so near subtract without rounding: the sum has the engine's bits.
        change = torch.zeros_like(taken[number]).detach()
        change[chosen] = own - taken[number].detach()[chosen]
        taken[number] = taken[number] + change
    return taken


def judge(request: DataRequest, given: Mapping[str, Tensor], logprobs: Tensor) -> Tensor:
    """The loss of each target of a datum, float64, in the shape of `target_tokens`."""
    shape = next(iter(given.values())).shape
    return LOSSES[request.loss].compute(logprobs.reshape(shape), given, request.config)


def show(request: DataRequest, datum: Datum, logprobs: Tensor, terms: Tensor) -> Mapping[str, Array]:
    """What the client learns of a datum."""
    shown = {"logprobs": logprobs.reshape(datum.inputs["target_tokens"].shape).cpu().numpy()}
    return shown | ({"elementwise_loss": terms.cpu().numpy()} if request.loss == "cross_entropy" else {})


def lay_out(batch: Sequence[Datum], device: torch.device) -> Layout:
    """A row of independent sequences, each place of which predicts its targets."""
    lengths = [len(datum.tokens) for datum in batch]
    starts = np.cumsum([0, *lengths[:-1]])
    numbers = np.repeat(np.arange(len(batch), dtype=np.int64), lengths)
    targets = [datum.inputs["target_tokens"] for datum in batch]
    predictors = [
        start + np.repeat(np.arange(length), wanted.size // max(length, 1))
        for start, length, wanted in zip(starts, lengths, targets, strict=True)
    ]
    owners = torch.from_numpy(np.repeat(np.arange(len(batch)), [wanted.size for wanted in targets]))
    nothing = torch.zeros(0)
    return Layout(
        tokens=torch.from_numpy(np.concatenate([datum.tokens for datum in batch])).to(device),
        segments=Segments(numbers, numbers, np.concatenate([np.arange(length, dtype=np.int64) for length in lengths])),
        predictors=torch.from_numpy(np.concatenate(predictors)).to(device),
        targets=torch.from_numpy(np.concatenate([wanted.reshape(-1) for wanted in targets])).to(device),
        known=Tokens(nothing, nothing, nothing, nothing, owners),
        device=device,
    )


def _step(operation: Operation, run: Run, _: Policy) -> tuple[Run, bytes]:
    """optim_step: AdamW as torch.optim.AdamW, with the values of this request; a snapshot, where its time has come."""
    began, wanted = time.perf_counter(), json.loads(operation.body)
    rate, decay = wanted["learning_rate"], wanted["weight_decay"]
    if not rate * max(decay, 1.0) <= LARGEST_RATE:
        raise TrainingError(
            f"learning_rate {rate:g} with weight_decay {decay:g} exceeds the maximum of {LARGEST_RATE:g}"
        )
    run.optimizer.weight_decay = decay
    norm = run.optimizer.step(
        rate, wanted["grad_clip_norm"] or torch.inf, (wanted["beta1"], wanted["beta2"]), wanted["eps"]
    )
    run.seq = operation.seq
    metrics, run.metrics = run.metrics, StepMetrics()
    metrics.sums["seconds"] += time.perf_counter() - began if metrics.sums["tokens"] else 0
    told = {**metrics.show(), "loss/learning_rate": rate, "loss/grad_norm": norm}
    run.step = {"settings": metrics.settings(wanted)} | {n: value for n, value in told.items() if math.isfinite(value)}
    if time.monotonic() - run.saved_at >= SNAPSHOT_SHARE * run.cost:
        _snapshot(operation, run)
    return run, json.dumps({"metrics": {"optim/grad_norm": norm, "optim/lr": rate}}).encode()


def _snapshot(operation: Operation, run: Run) -> None:
    began = time.monotonic()
    add_snapshot(Path(operation.work), operation.seq, run.write)
    run.saved_at = time.monotonic()
    run.cost = run.saved_at - began


def _save(operation: Operation, run: Run, _: Policy) -> tuple[Run, bytes]:
    """save_weights with the optimizer, the others without."""
    assert operation.place is not None
    write = run.write if operation.kind == "save_weights" else run.adapter.write
    make_whole(Path(operation.place), write)
    return run, b""


def _load(operation: Operation, run: Run, policy: Policy) -> tuple[Run, bytes]:
    """load_weights: the run goes on with what a folder holds, which is stored at once."""
    assert operation.place is not None
    loaded = read_run(
        Path(operation.place), policy.model.device, operation.seq, bool(json.loads(operation.body)["optimizer"])
    )
    shapes = [{name: tensor.shape for name, tensor in held.adapter.named().items()} for held in (run, loaded)]
    if shapes[0] != shapes[1]:
        raise TrainingError("the LoRA matrices of the checkpoint differ from those of the model")
    _snapshot(operation, loaded)
    return loaded, b""


Handler = Callable[[Operation, Run, Policy], tuple[Run, bytes]]
HANDLERS: dict[str, Handler] = {
    "forward": _compute,
    "forward_backward": _compute,
    "optim_step": _step,
    "save_weights": _save,
    "save_weights_external": _save,
    "save_weights_for_sampler": _save,
    "load_weights": _load,
}
