"""Several processes on one job: each computes a part of every row, and gradients and sums are added up.

All ranks hold the same adapter and optimizer and take the same steps, so that nothing else has to be sent.
"""

import os
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, distributed, nn

from heddle.training.trainer.packing import PER_TOKEN, Row

Value = TypeVar("Value")
IDLE = timedelta(days=30)
"""How long ranks wait for each other: between two jobs as long as it takes."""


class Ranks:
    """The processes that work on one job together; this class is one alone."""

    rank = 0
    count = 1

    def total(self, value: Tensor) -> Tensor:
        """A value added over all ranks; without a gradient."""
        return value.detach()

    def largest(self, value: Tensor) -> Tensor:
        """The largest value of all ranks."""
        return value.detach()

    def add_gradients(self, parameters: list[Tensor]) -> None:
        """Let every rank have the sum of all ranks' gradients."""

    def share(self, value: Value | None) -> Value:
        """What rank 0 gives; the others give None."""
        assert value is not None
        return value

    def leave(self) -> None:
        """Part in order: the last thing that every rank does."""


class DistributedRanks(Ranks):
    """The processes that `torchrun` (or another starter that sets its variables) has begun."""

    def __init__(self, device: torch.device, is_ours: bool = True) -> None:
        """`is_ours`: the group was made here, and is ended here."""
        self.is_ours = is_ours
        self.rank = distributed.get_rank()
        self.count = distributed.get_world_size()
        self.device = device

    def total(self, value: Tensor) -> Tensor:
        return self._reduce(value, distributed.ReduceOp.SUM)

    def largest(self, value: Tensor) -> Tensor:
        return self._reduce(value, distributed.ReduceOp.MAX)

    def _reduce(self, value: Tensor, how: Any) -> Tensor:
        copy = value.detach().clone().to(self.device)
        distributed.all_reduce(copy, op=how)
        return copy.to(value.device)

    def add_gradients(self, parameters: list[Tensor]) -> None:
        # one message for all of them
        gradients = [torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in parameters]
        joined = self.total(torch.cat([gradient.flatten() for gradient in gradients]))
        sizes = [tensor.numel() for tensor in parameters]
        for tensor, part in zip(parameters, torch.split(joined, sizes), strict=True):
            tensor.grad = part.view(tensor.shape).to(tensor.dtype)

    def share(self, value: Value | None) -> Value:
        box = [value]
        distributed.broadcast_object_list(box, src=0, device=self.device)
        assert box[0] is not None
        return box[0]

    def leave(self) -> None:
        # wait for all, and end the threads that would abort an interpreter which ends before them
        distributed.barrier()
        if self.is_ours:
            distributed.destroy_process_group()


def join_ranks() -> Ranks:
    """The ranks of this process: alone, unless torchrun (or what sets its variables) started it with others.

    A group that the starter has made already, as Ray Train does, is taken as it is.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Ranks()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    is_ours = not distributed.is_initialized()
    if is_ours:
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=IDLE)
    return DistributedRanks(device, is_ours)


def is_distributed() -> bool:
    """True when this process is one of several ranks."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def part_of(row: Row, rank: int, count: int) -> Row:
    """The segments of a row that are a rank's own, about as many tokens for each, behind the prompts that they share.

    Every trained token belongs to exactly one rank. A rank without segments gets one that is not trained, as all ranks
    must take part in the same products.
    """
    if count == 1:
        return row
    edges = np.flatnonzero(np.diff(row.segments, prepend=row.segments[:1] - 1))
    sizes = np.diff(np.append(edges, len(row.segments)))
    middles = np.cumsum(sizes) - sizes / 2
    owners = np.minimum((middles * count / len(row.segments)).astype(np.int64), count - 1)
    own = row.segments[edges][owners == rank]
    needed = np.union1d(own, row.parents[edges][owners == rank])
    kept = np.isin(row.segments, needed if len(needed) else row.segments[:1])
    values = {name: getattr(row, name)[kept] for name in PER_TOKEN}
    values["mask"] = values["mask"] & np.isin(values["segments"], own)
    return Row(**values, sequences=row.sequences, lags=row.lags)


def spread_layers(layers: nn.ModuleList, device: torch.device) -> None:
    """Hold each rank's share of every layer's matrices, and gather a layer only while it computes (FSDP2).

    The adapter is no part of the layers' parameters: it stays whole on every rank, as do the small vectors.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    for layer in layers:
        vectors = {parameter for parameter in layer.parameters() if parameter.dim() == 1}
        fully_shard(layer, mesh=mesh, ignored_params=vectors)
