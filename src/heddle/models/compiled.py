"""The forward pass of `native` with compiled `kernels`: rows in float32, weights in any precision."""

from dataclasses import dataclass
from functools import cache, partial
from typing import Any, cast

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heddle.models.cache import BLOCK_TOKENS, SlabLane
from heddle.models.folder import ModelConfig, Weights
from heddle.models.interfaces import Batch, Linear
from heddle.models.kernels import QUERY_ROWS, Kernels
from heddle.models.lora import ActiveAdapters, AdapterStore
from heddle.models.native import Layer, NativeModel
from heddle.models.tiles import HAS_INT8, LANES, PANEL

NONE: NDArray[np.float32] = np.empty(0, np.float32)
ZERO = np.float32(0.0)
CACHE_DTYPES = {torch.float32: torch.float32, torch.bfloat16: torch.bfloat16, torch.int8: torch.bfloat16}


class Unsuitable(Exception):
    """What the kernels do not compute; the text says what."""


@cache
def kernels_for(parallel: bool) -> Kernels:
    """The kernels of this process."""
    return Kernels(parallel)


class CompiledLinear:
    """weight @ row + bias for each row of float32 numbers."""

    def __init__(self, kernels: Kernels, dtype: torch.dtype, weight: Tensor, bias: Tensor | None = None) -> None:
        self.kernels = kernels
        self.outputs = weight.shape[0]
        self.scales, self.offsets = NONE, np.empty(0, np.int32)
        if dtype == torch.int8:
            weight, self.scales, self.offsets = quantize(weight)
        self.weights = pack(weight, dtype)
        self.bias = NONE if bias is None else bias.float().numpy()

    def __call__(self, rows: Tensor) -> Tensor:
        """[rows, inputs] to [rows, outputs]."""
        return torch.from_numpy(self.multiply(rows.numpy()))

    def multiply(self, rows: NDArray[Any], norm: NDArray[Any] = NONE, epsilon: np.float32 = ZERO) -> NDArray[Any]:
        """The same with arrays; with `norm` the rows are normalised before."""
        out = np.empty((rows.shape[0], self.outputs), np.float32)
        self.kernels.multiply(self.weights, self.scales, self.offsets, self.bias, rows, norm, epsilon, False, out)
        return out

    def add(self, rows: NDArray[Any], out: NDArray[Any]) -> None:
        """Add the result to `out`."""
        self.kernels.multiply(self.weights, self.scales, self.offsets, self.bias, rows, NONE, ZERO, True, out)


def quantize(weight: Tensor) -> tuple[Tensor, NDArray[Any], NDArray[Any]]:
    """8-bit weights, each output's scale, and what rows that are raised by 128 have too much."""
    weight = weight.float()
    scales = weight.abs().amax(1).clamp_(min=1e-30) / 127.0
    numbers = (weight / scales[:, None]).round_().to(torch.int8)
    return numbers, scales.numpy(), (numbers.int().sum(1) * 128).int().numpy()


def pack(weight: Tensor, dtype: torch.dtype) -> NDArray[Any]:
    """Weights [outputs, inputs] in panels of 64 outputs, [inputs / group, outputs of the panel, group] each."""
    group = {torch.float32: 1, torch.bfloat16: 2, torch.int8: 4}[dtype]
    kind: Any = {torch.bfloat16: np.uint16, torch.int8: np.int8}.get(dtype, np.float32)
    if dtype == torch.bfloat16:
        weight = weight.to(dtype).view(torch.int16)
    elif dtype == torch.float32:
        short = weight.to(torch.bfloat16)
        if torch.equal(short.float(), weight.float()):
            # Half the memory to read, and the same numbers.
            weight, kind = short.view(torch.int16), np.int16
        else:
            weight = weight.float()
    outputs, inputs = weight.shape
    whole = torch.zeros(-(-outputs // LANES) * LANES, -(-inputs // group) * group, dtype=weight.dtype)
    whole[:outputs, :inputs] = weight
    packed = torch.empty(whole.numel(), dtype=weight.dtype)
    place = 0
    for panel in torch.split(whole, PANEL):
        size = panel.numel()
        packed[place : place + size] = panel.view(panel.shape[0], -1, group).transpose(0, 1).reshape(-1)
        place += size
    return cast(NDArray[Any], packed.numpy().view(kind))


@dataclass(slots=True)
class CompiledStep:
    """A batch as the kernels want it."""

    places: NDArray[np.int64]
    """For each row the address of its lane, the bytes of a layer, the capacity, and the position."""
    groups: NDArray[np.int64]
    """Where groups of rows begin that go through the same keys together, and the number of rows."""
    rotation: NDArray[np.float32]
    """[rows, head_dim / 2, 2]: cosines and sines."""


class CompiledModel(NativeModel):
    """See `CausalModel`."""

    batch_invariant = True
    cache_dtypes = CACHE_DTYPES

    def __init__(self, config: ModelConfig, weights: Weights, dtype: torch.dtype) -> None:
        if config.head_dim % LANES:
            raise Unsuitable(f"heads of {config.head_dim} numbers")
        if dtype not in CACHE_DTYPES:
            raise Unsuitable(f"the precision {dtype}")
        if dtype == torch.int8 and not HAS_INT8:
            raise Unsuitable("8-bit products on a processor without AVX-512 VNNI")
        self.kernels = kernels_for(torch.get_num_threads() > 1)
        super().__init__(config, weights, dtype, torch.device("cpu"))
        self.like = np.empty(0, np.float32 if self.cache_dtype == torch.float32 else np.uint16)
        self.adapters = AdapterStore(
            config, torch.float32, self.device, partial(CompiledLinear, self.kernels, torch.float32)
        )
        self.group_rows = max(1, QUERY_ROWS // (config.heads // config.kv_heads))
        self.small = np.float32(config.norm_epsilon)
        none = torch.empty(0, 0)
        self.norms = [
            tuple(scale.numpy() for scale in (layer.attention_norm, none if own is None else own, layer.mlp_norm))
            for layer in self.layers
            for own in [layer.query_key_norm]
        ]
        """Of each layer: scales before attention, of queries and keys, and before the feed-forward network."""

    def make_linear(self, weight: Tensor, bias: Tensor | None) -> Any:
        """Weights in the order of the kernels."""
        return CompiledLinear(self.kernels, self.dtype, weight, bias)

    def plan_rows(self, batch: Batch) -> CompiledStep:
        """Where each row's keys and values are, and which rows go together."""
        places: list[tuple[int, int, int, int]] = []
        groups: list[int] = []
        for span in batch.prefills + batch.decodes:
            lane = cast(SlabLane, span.lane)
            data, last = lane.slab.data, span.first_position + span.count
            # Blocks are written whole: the cache copies what is used.
            lane.used = max(lane.used, -(-last // BLOCK_TOKENS) * BLOCK_TOKENS)
            address = data.data_ptr() + lane.row * data.stride(1) * data.itemsize
            layer = data.stride(0) * data.itemsize
            groups += range(len(places), len(places) + span.count, self.group_rows)
            places += [(address, layer, lane.capacity, position) for position in range(span.first_position, last)]
        table = np.array(places, np.int64)
        rotation = self.rotary.at(torch.from_numpy(table[:, 3].copy()), int(table[:, 3].max()) + 1)
        return CompiledStep(
            places=table,
            groups=np.array([*groups, len(places)], np.int64),
            rotation=torch.view_as_real(rotation.squeeze(1)).numpy(),
        )

    def states(self, batch: Batch) -> Tensor:
        """Rows after the last norm, float32; new keys and values go into the lanes."""
        if self.kernels.parallel:
            numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))
        step = self.plan_rows(batch)
        spans = batch.prefills + batch.decodes
        adapters = self.adapters.active([span.adapter for span in spans], [span.count for span in spans])
        hidden: NDArray[np.float32] = self.embedding[batch.token_ids].float().numpy()
        rows = np.array(batch.logit_rows, np.int64)
        every = len(rows) == len(hidden)
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            mixed = self.attend(index, layer, hidden, step, adapters)
            if index == last and not every:
                mixed, hidden = mixed[rows], hidden[rows]
                adapters = None if adapters is None else adapters.of_rows(torch.from_numpy(rows))
            if len(hidden):
                self.feed_forward(index, layer, hidden, mixed, adapters)
        normed = np.empty_like(hidden)
        self.kernels.normalise_rows(hidden, self.norm.numpy(), self.small, normed)
        return torch.from_numpy(normed)

    def attend(
        self, index: int, layer: Layer, hidden: NDArray[np.float32], step: CompiledStep, adapters: ActiveAdapters | None
    ) -> NDArray[np.float32]:
        """Mixed values of all rows, [rows, heads * head_dim]; new keys and values go into the lanes."""
        config, kernels = self.config, self.kernels
        before, norm, _ = self.norms[index]
        qkv = self.project(index, "qkv", layer.qkv, hidden, before, adapters)
        kernels.rotate_and_store(self.like, index, step.places, qkv, config.heads, norm, self.small, step.rotation)
        mixed = np.empty((len(qkv), config.heads * config.head_dim), np.float32)
        window = layer.window or 0
        kernels.attend(self.like, index, step.places, qkv, config.heads, config.head_dim, window, step.groups, mixed)
        return mixed

    def feed_forward(
        self,
        index: int,
        layer: Layer,
        hidden: NDArray[np.float32],
        mixed: NDArray[np.float32],
        adapters: ActiveAdapters | None,
    ) -> None:
        """Add what attention found, and the feed-forward network's answer to it, to the stream `hidden`."""
        self.add(index, "output", layer.output, mixed, hidden, adapters)
        both = self.project(index, "gate_up", layer.gate_up, hidden, self.norms[index][2], adapters)
        inner = np.empty((len(hidden), self.config.intermediate_size), np.float32)
        self.kernels.gate(both, inner)
        self.add(index, "down", layer.down, inner, hidden, adapters)

    def project(
        self,
        index: int,
        name: str,
        linear: Linear,
        hidden: NDArray[np.float32],
        norm: NDArray[np.float32],
        adapters: ActiveAdapters | None,
    ) -> NDArray[np.float32]:
        """What a linear and its adapters make of the normalised stream."""
        product = cast(CompiledLinear, linear)
        if adapters is None:
            return product.multiply(hidden, norm, self.small)
        normed = np.empty_like(hidden)
        self.kernels.normalise_rows(hidden, norm, self.small, normed)
        result = product.multiply(normed)
        adapters.add_to(torch.from_numpy(result), torch.from_numpy(normed), index, name)
        return result

    def add(
        self,
        index: int,
        name: str,
        linear: Linear,
        rows: NDArray[np.float32],
        hidden: NDArray[np.float32],
        adapters: ActiveAdapters | None,
    ) -> None:
        """Add what a linear and its adapters make of rows to the stream."""
        cast(CompiledLinear, linear).add(rows, hidden)
        if adapters is not None:
            adapters.add_to(torch.from_numpy(hidden), torch.from_numpy(rows), index, name)
