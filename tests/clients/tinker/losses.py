"""Each loss of the client from one checkpoint: a gradient, a step, and the weights downloaded as a PEFT folder."""

import os
import random
import urllib.request
from pathlib import Path

import torch
from common import BASE, draw_tokens, report, rest, service, supervised
from tinker import types

CONFIGS = {
    "ppo": {"clip_low_threshold": 0.9, "clip_high_threshold": 1.5},
    "cispo": {"clip_low_threshold": 0.5, "clip_high_threshold": 1.25},
    "dro": {"beta": 0.25},
    "gspo": {"clip_low_threshold": 0.75, "clip_high_threshold": 1.5},
    "stable_reinforce": {"ratio_limit": 1.5, "advantage_limit": 2.0, "kl_coeff": 0.125},
}
FOLDER = Path(os.environ["SCENARIO_FOLDER"])
client = service()
training = client.create_lora_training_client(base_model=BASE, rank=4, seed=3).result()
for _ in range(3):
    training.forward_backward([supervised(seed) for seed in range(4)], "cross_entropy")
    training.optim_step(types.AdamParams(learning_rate=2e-2)).result()
start = training.save_state("start").result().path


def download(trained, name):
    """The path of a folder with what was saved."""
    path = trained.save_weights_external(name).result().path
    (FOLDER / name).mkdir()
    for file, url in rest().get_external_weights_urls(path).result().urls.items():
        urllib.request.urlretrieve(url, FOLDER / name / file)
    return str(FOLDER / name)


def inputs_of(name, seed, old):
    """What a loss needs, in numbers that float32 holds exactly."""
    source = random.Random(seed)
    eighths = [source.randrange(-24, 25) / 8 for _ in old]
    if name in ("cross_entropy", "pairs", "handle"):
        return {"weights": [abs(value) for value in eighths]}
    drifted = [round(8 * (value + source.uniform(-0.6, 0.6))) / 8 for value in old]
    mask = {"sequence_ratio_mask": [float(place >= 3) for place in range(len(old))]} if name == "gspo" else {}
    return {"logprobs": drifted, "advantages": eighths, **mask}


def pairs(data, logprobs):
    """How far the first answer is preferred to the second, as DPO without a reference."""
    first, second = (one[3:].sum() for one in logprobs)
    loss = -torch.nn.functional.logsigmoid(0.25 * (first - second))
    return loss, {"margin": (first - second).item()}


def squares(logprobs, weights):
    """A loss that the client traces."""
    loss = (weights * logprobs**2).sum()
    return loss, {"custom/squares:sum": loss}


handle = client.create_custom_loss(squares, input_ranks={"logprobs": 1, "weights": 1}).result()
texts = [draw_tokens(seed, 13) for seed in (21, 22)]
plain = [types.ModelInput.from_ints(ids[:-1]) for ids in texts]
zeros = [
    types.Datum(model_input=one, loss_fn_inputs={"target_tokens": ids[1:], "weights": [0.0] * 12})
    for one, ids in zip(plain, texts, strict=True)
]
old = [one["logprobs"].data for one in training.forward(zeros, "cross_entropy").result().loss_fn_outputs]
seen = {"start": download(training, "start")}
results = {}
for name in ("cross_entropy", "importance_sampling", *CONFIGS, "pairs", "handle"):
    trained = client.create_training_client_from_state(start).result()
    inputs = [inputs_of(name, seed, values) for seed, values in enumerate(old)]
    data = [
        types.Datum(model_input=one, loss_fn_inputs={"target_tokens": ids[1:], **given})
        for one, ids, given in zip(plain, texts, inputs, strict=True)
    ]
    if name in ("pairs", "handle"):
        computed = trained.forward_backward_custom(data, pairs if name == "pairs" else handle)
    else:
        computed = trained.forward_backward(data, name, CONFIGS.get(name))
    trained.optim_step(types.AdamParams(learning_rate=1e-2, eps=0.5)).result()
    results[name] = {
        "loss": computed.result().metrics["loss:sum"],
        "inputs": inputs,
        "config": CONFIGS.get(name, {}),
        "folder": download(trained, name),
    }
client.close("success").result()
report(texts=texts, results=results, **seen)
