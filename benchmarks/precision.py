"""What each precision costs in perplexity, on text that the models were not trained on.

    python benchmarks/precision.py                       # the included model, and 60M parameters trained for this

The second model is Qwen3 of 60 million parameters with fresh weights from a seed, trained once on modules of the
standard library into .cache/bench/models/60m-trained; it is scored on modules of its packages.
"""

import argparse
import json
import math
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import support
from benchmarks.inference import models
from heddle.inference.served_model import TINY_FOLDER
from heddle.models.decoder import Decoder
from heddle.models.folder import parse_config, read_json
from heddle.models.load import load_model
from heddle.models.scoring import KnownSequence, TokenScorer
from tools.tiny_model.batches import assistant_id, encode, own_tokens
from tools.tiny_model.evaluate import FIRST_SEED
from tools.tiny_model.optimizer import optimizers
from tools.tiny_model.tasks.mix import sample
from tools.tiny_model.train import Recipe, rate

DTYPES = ("float32", "bfloat16", "int8")
LENGTH = 256
ROWS = 4
MATRIX_RATE, OTHER_RATE = 0.02, 0.001
TRAINED = models.FOLDER / "60m-trained"


def pieces(tokenizer: Tokenizer, folder: str) -> Iterator[torch.Tensor]:
    """Token ids of the modules in a folder of the standard library, 257 at a time."""
    for path in sorted(Path(sysconfig.get_path("stdlib"), folder).glob("*.py")):
        ids = tokenizer.encode(path.read_text(encoding="utf8", errors="replace")).ids
        yield from torch.tensor(ids, dtype=torch.int64).split(LENGTH + 1)


def train(steps: int) -> None:
    """Train 60 million parameters and keep them."""
    folder = models.model_folder("60m")
    torch.manual_seed(0)
    decoder = Decoder(parse_config(read_json(folder / "config.json")))
    decoder.initialise(torch.Generator().manual_seed(0))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    whole = [piece for piece in pieces(tokenizer, ".") if len(piece) == LENGTH + 1]
    rates = (MATRIX_RATE, OTHER_RATE)
    chosen = optimizers(decoder, *rates)
    random, began = Random(0), time.perf_counter()
    for step in range(steps):
        for optimizer, highest in zip(chosen, rates, strict=True):
            optimizer.param_groups[0]["lr"] = highest * rate(step / steps, Recipe())
        tokens = torch.stack(random.sample(whole, ROWS))
        with torch.autocast("cpu", torch.bfloat16):
            logits = decoder(tokens[:, :-1])
        loss = functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        for optimizer in chosen:
            optimizer.step()
            optimizer.zero_grad()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss:.3f}, {time.perf_counter() - began:.0f} s", flush=True)
    draft = TRAINED.with_suffix(".draft")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(folder, draft, ignore=shutil.ignore_patterns("*.gguf", "*.safetensors"))
    decoder.save(draft, json.loads((folder / "config.json").read_text()))
    draft.rename(TRAINED)


def chats(count: int) -> list[KnownSequence]:
    """Fresh conversations of the included model's tasks; the assistant's tokens are scored."""
    tokenizer = Tokenizer.from_file(str(TINY_FOLDER / "tokenizer.json"))
    assistant, random = assistant_id(tokenizer), Random(FIRST_SEED)
    return [
        KnownSequence(torch.tensor(ids), [place for place, own in enumerate(own_tokens(ids, assistant)) if own])
        for ids in encode(tokenizer, [sample(random) for _ in range(count)])
    ]


def modules(count: int) -> list[KnownSequence]:
    """Pieces of the standard library's packages; all tokens but the first are scored."""
    tokenizer = Tokenizer.from_file(str(TRAINED / "tokenizer.json"))
    found = [piece for folder in ("asyncio", "email", "json") for piece in pieces(tokenizer, folder)]
    several = Random(0).sample(found, min(count, len(found)))
    return [KnownSequence(piece, list(range(1, len(piece)))) for piece in several if len(piece) > 1]


def print_model(name: str, folder: Path, known: list[KnownSequence]) -> None:
    """A line for each precision."""
    rows: list[list[object]] = []
    base, exact = 0.0, torch.empty(0)
    for dtype in DTYPES:
        found = TokenScorer(load_model(folder, device="cpu", dtype=dtype), None).score(known).double()
        perplexity = math.exp(-float(found.mean()))
        if not rows:
            base, exact = perplexity, found
        change = f"{100 * (perplexity / base - 1):+.3f} %"
        rows.append([dtype, perplexity, change, float((found - exact).abs().mean()), len(found)])
    columns = ["precision", "perplexity", "change", "mean difference of a log-probability", "tokens"]
    support.print_table(f"{name}: perplexity", columns, rows)


def main() -> None:
    """Train what is missing, then score."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="chats and pieces (default 200)")
    parser.add_argument("--steps", type=int, default=150, help="of training, when the model is not there (default 150)")
    parser.add_argument("--tiny", action="store_true", help="the included model only")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    support.print_machine()
    print_model("heddle-tiny", TINY_FOLDER, chats(arguments.count))
    if arguments.tiny:
        return
    if not TRAINED.exists():
        train(arguments.steps)
    print_model("60M, trained", TRAINED, modules(arguments.count))


if __name__ == "__main__":
    main()
