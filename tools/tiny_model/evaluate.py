"""Accuracy by task: `python -m tools.tiny_model.evaluate [FOLDER] [--count N] [--effort low|medium|high]`."""

import argparse
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer

from heddle.inference.served_model import TINY_FOLDER
from heddle.models.decoder import Decoder
from tools.tiny_model.batches import assistant_id, encode, groups, pack
from tools.tiny_model.chat import Chat
from tools.tiny_model.tasks.mix import CHATS, CHECKED, make
from tools.tiny_model.tasks.turn import EFFORTS
from tools.tiny_model.tokenizer import END_ID

BATCH_TOKENS = 8192
FIRST_SEED = 1_000_000
"""Far from the seeds of training."""


def chats_of(task: str, count: int, effort: str | None = None, seed: int = FIRST_SEED) -> list[Chat]:
    """Fresh conversations of one task, each with one question."""
    random = Random(seed)
    return [make(random, task, effort) for _ in range(count)]


def accuracy(model: Decoder, tokenizer: Tokenizer, chats: list[Chat]) -> float:
    """Share of chats whose last answer greedy decoding gives exactly, thoughts, calls and end mark included.

    One forward pass tells: greedy decoding gives the answer exactly when every token of it is the most likely one
    after those before it.
    """
    assistant = assistant_id(tokenizer)
    right = 0
    with torch.inference_mode():
        for group in groups(sorted(encode(tokenizer, chats), key=len), BATCH_TOKENS):
            batch = pack(group, assistant)
            wrong = (model(batch.tokens[:, :-1]).argmax(-1) != batch.tokens[:, 1:]) & last_answer(batch.own)[:, 1:]
            right += int((~wrong.any(dim=1)).sum())
    return right / len(chats)


def last_answer(own: torch.Tensor) -> torch.Tensor:
    """Of the assistant's tokens (batch, length), those of the last turn."""
    starts = own & ~own.roll(1, dims=1)
    turns = starts.cumsum(dim=1)
    return own & (turns == turns[:, -1:])


def complete(
    model: Decoder,
    tokenizer: Tokenizer,
    prompt: str,
    limit: int = 64,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
) -> str:
    """The text that follows a rendered prompt, up to the end mark; without a cache, so for short ones."""
    ids: list[int] = tokenizer.encode(prompt).ids
    start = len(ids)
    with torch.inference_mode():
        while len(ids) < start + limit:
            logits = model.lm_head(model.hidden(torch.tensor([ids]))[0, -1])
            if temperature:
                token = int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator))
            else:
                token = int(logits.argmax())
            if token == END_ID:
                break
            ids.append(token)
    return tokenizer.decode(ids[start:], skip_special_tokens=False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.tiny_model.evaluate", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=TINY_FOLDER)
    parser.add_argument("--count", type=int, default=200, help="fresh chats of each task")
    parser.add_argument("--effort", choices=EFFORTS, help="think first; tasks with tools or documents are left out")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = Decoder.load(chosen.folder), Tokenizer.from_file(str(chosen.folder / "tokenizer.json"))
    for task in CHECKED:
        if chosen.effort is None or task not in CHATS:
            share = accuracy(model, tokenizer, chats_of(task, chosen.count, chosen.effort))
            print(f"| {task} | {share:.2f} |")


if __name__ == "__main__":
    main()
