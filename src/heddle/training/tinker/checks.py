"""What requests of Tinker's protocol must hold to be accepted: tokens, data of a loss, the shape of an adapter."""

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from heddle.errors import InvalidRequest
from heddle.store.control.tinker import SavedRow
from heddle.training.initial_adapter import BaseShape
from heddle.training.losses.tinker import LOSSES
from heddle.training.tinker.schemas import LoadWeights, LoraConfig
from heddle.wire.training import BaseModel

if TYPE_CHECKING:
    from heddle.training.tinker.messages import DataRequest

_ATTENTION, _MLP = re.compile(r"attn|attention"), re.compile(r"mlp|feed_forward|ffn")


def choose_projections(shape: BaseShape, wanted: LoraConfig) -> BaseShape:
    """The linears that a client trains; raises InvalidRequest for none."""
    chosen = {
        name: size
        for name, size in shape.projections.items()
        if (wanted.train_attn or not _ATTENTION.search(name)) and (wanted.train_mlp or not _MLP.search(name))
    }
    if not chosen:
        raise InvalidRequest(
            "lora_config: train_attn or train_mlp must be true; training only the unembedding is not supported",
            param="lora_config",
        )
    return BaseShape(shape.parameters, chosen)


def check_optimizer(wanted: LoadWeights, source: SavedRow) -> None:
    """Raise InvalidRequest where a checkpoint has no optimizer, or the request names one that it cannot have."""
    if wanted.optimizer and source.kind != "training":
        raise InvalidRequest(
            "optimizer: sampler weights have no optimizer state; load a checkpoint made by save_state",
            param="optimizer",
        )
    if wanted.optimizer and wanted.optimizer_config is not None:
        raise InvalidRequest(
            "optimizer_config: not allowed here; it is restored with the optimizer", param="optimizer_config"
        )


def refuse_token(token: str | None) -> None:
    """Raise InvalidRequest for a token to what others have."""
    if token is not None:
        raise InvalidRequest(
            "weights_access_token is not supported; to load a checkpoint of another user, use a key with "
            "access to it, or have it published",
            param="weights_access_token",
        )


def check_tokens(ids: Sequence[int], base: BaseModel, place: str) -> None:
    """Raise InvalidRequest for tokens that the model does not have, none, or more than it reads."""
    if not ids:
        raise InvalidRequest(f"{place}: must have at least one token", param=place)
    if len(ids) > base.max_model_len:
        raise InvalidRequest(
            f"{place}: {len(ids)} tokens exceed the model's maximum of {base.max_model_len}", param=place
        )
    if not 0 <= min(ids) <= max(ids) < base.vocab_size:
        raise InvalidRequest(f"{place}: tokens must be from 0 to {base.vocab_size - 1}", param=place)


def check_data(wanted: "DataRequest", base: BaseModel) -> None:
    """Raise InvalidRequest for data that the loss cannot be computed on."""
    loss = LOSSES.get(wanted.loss)
    if loss is None:
        raise InvalidRequest(
            f"loss_fn {wanted.loss[:100]!r} is unknown; expected one of {', '.join(LOSSES)} (custom losses "
            "are computed by the client)",
            param="loss_fn",
        )
    if unknown := sorted(set(wanted.config) - set(loss.config)):
        takes = ", ".join(loss.config) or "nothing"
        raise InvalidRequest(f"loss_fn_config: {wanted.loss} accepts {takes}, got {unknown[0]}", param="loss_fn_config")
    for name, value in wanted.config.items():
        if isinstance(value, str) or not math.isfinite(value):
            raise InvalidRequest(f"loss_fn_config: {name} must be a number", param="loss_fn_config")
    if not wanted.data:
        raise InvalidRequest("data: must have at least one datum", param="data")
    for place, datum in enumerate(wanted.data):
        at = f"data[{place}]"
        check_tokens(datum.tokens.tolist(), base, f"{at}.model_input")
        names = ("target_tokens", *loss.inputs)
        for name in names:
            if name not in datum.inputs:
                raise InvalidRequest(f"{at}: {wanted.loss} requires loss_fn_inputs[{name!r}]", param="data")
        if unknown := sorted(set(datum.inputs) - {*names, *loss.optional}):
            raise InvalidRequest(f"{at}: {wanted.loss} does not support loss_fn_inputs[{unknown[0]!r}]", param="data")
        targets = datum.inputs["target_tokens"]
        if len(targets) != len(datum.tokens) or (targets.ndim > 1 and not loss.takes_many):
            raise InvalidRequest(
                f"{at}: target_tokens has the shape {list(targets.shape)}, but there are {len(datum.tokens)} tokens",
                param="data",
            )
        for name, array in datum.inputs.items():
            if array.shape != targets.shape:
                raise InvalidRequest(
                    f"{at}: {name} has the shape {list(array.shape)}, which differs from target_tokens", param="data"
                )
            if not bool((abs(array) < math.inf).all()):
                raise InvalidRequest(f"{at}: {name} has a value that is not a number", param="data")
        if targets.dtype.kind != "i" or not 0 <= targets.min(initial=0) <= targets.max(initial=0) < base.vocab_size:
            raise InvalidRequest(f"{at}: target_tokens must be from 0 to {base.vocab_size - 1}", param="data")
