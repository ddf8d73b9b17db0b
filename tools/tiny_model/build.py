"""Build the model folder: `python -m tools.tiny_model.build OUT_DIR [--seconds N | --steps N] [--seed N]`."""

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer

from heddle.models.decoder import Decoder
from tools.tiny_model.tokenizer import END_ID, PAD_ID, build_tokenizer, save_tokenizer
from tools.tiny_model.train import Recipe, shape, train


def build(folder: Path, recipe: Recipe, tokenizer: Tokenizer | None = None, checkpoint_steps: int = 1000) -> None:
    """Make the tokenizer (unless given), train, and leave a complete folder; its weights follow every checkpoint."""
    tokenizer = tokenizer or build_tokenizer()
    save_tokenizer(tokenizer, folder)
    ends = {"eos_token_id": END_ID, "pad_token_id": PAD_ID, "bos_token_id": None}

    def keep(model: Decoder, step: int) -> None:
        staged = folder / f".step-{step}"
        model.save(staged, shape(tokenizer.get_vocab_size()) | ends, torch.bfloat16)
        for name in ("config.json", "model.safetensors"):
            (staged / name).chmod(0o644)
            (staged / name).replace(folder / name)
        staged.rmdir()

    keep(train(tokenizer, recipe, keep, checkpoint_steps), -1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.tiny_model.build", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=600.0, help="wall time of training")
    parser.add_argument("--steps", type=int, help="length in steps instead: then a seed gives the same bytes")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    build(chosen.folder, Recipe(chosen.seed, chosen.steps, chosen.seconds))


if __name__ == "__main__":
    main()
