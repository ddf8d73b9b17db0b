"""Driver of the plain method: transformers and peft, sequences padded side by side, in parts of 32, one AdamW step.

The objective is the default one (CISPO, ratios clipped to 0 and 5).
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "inference"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import driver
import steps

PART = 32
CLIP = (0.0, 5.0)
MOST_NORM = 0.1


class Trainer:
    """One model with its adapter and optimizer in this process."""

    def load(self, folder: str, adapter: str, threads: int, learning_rate: float, **_: Any) -> dict[str, Any]:
        """Import and load."""
        import torch
        import transformers
        from peft import PeftModel

        torch.set_num_threads(threads)
        transformers.logging.set_verbosity_error()
        base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.model = PeftModel.from_pretrained(base, adapter, is_trainable=True).train()
        self.parameters = [value for value in self.model.parameters() if value.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.1)
        return {"version": transformers.__version__, "dtype": "float32"}

    def batch(self, path: str) -> dict[str, Any]:
        """Pad in parts; what belongs to a token stands where it is predicted."""
        import torch

        sequences = steps.read_batch(path)
        self.trained = sum(sum(sequence["mask"]) for sequence in sequences)
        self.parts = []
        for start in range(0, len(sequences), PART):
            part = sequences[start : start + PART]
            mask = torch.tensor(steps.right([sequence["mask"] for sequence in part], False))[:, 1:]
            known = [[value or 0.0 for value in sequence["logprobs"]] for sequence in part]
            factor = torch.tensor([sequence["advantage"] * sequence["weight"] for sequence in part])
            ids = torch.tensor(steps.right([sequence["ids"] for sequence in part], 0))
            self.parts.append((ids, mask, torch.tensor(steps.right(known, 0.0))[:, 1:], factor[:, None]))
        return {"tokens": sum(len(sequence["ids"]) for sequence in sequences)}

    def logprobs(self) -> dict[str, Any]:
        """Log-probabilities of the trained tokens, sequence by sequence."""
        import torch

        found = []
        with torch.inference_mode():
            for ids, mask, _, _ in self.parts:
                found += [row[flags].tolist() for row, flags in zip(self._logprobs(ids), mask, strict=True)]
        return {"logprobs": found}

    def run(self, count: int) -> dict[str, Any]:
        """Whole gradient steps."""
        steps.forget_peak()
        return {"steps": steps.timed(self._step, count), **steps.memory()}

    def _logprobs(self, ids: Any) -> Any:
        import torch

        predicted = torch.log_softmax(self.model(input_ids=ids).logits[:, :-1].float(), -1)
        return predicted.gather(2, ids[:, 1:, None])[..., 0]

    def _step(self) -> dict[str, float]:
        import torch

        total = 0.0
        for ids, mask, old, factor in self.parts:
            new = self._logprobs(ids)
            ratio = (new.detach() - old).exp().clamp(*CLIP)
            loss = -(ratio * factor * new * mask).sum() / self.trained
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, MOST_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return {"loss": total, "grad_norm": float(norm)}


if __name__ == "__main__":
    trainer = Trainer()
    driver.serve({"load": trainer.load, "batch": trainer.batch, "logprobs": trainer.logprobs, "run": trainer.run})
