"""Driver of TRL: the loss of its GRPOTrainer on a given batch, then backward, clipping and AdamW as its trainer does.

Rollouts, rewards and advantages are the batch's; advantages are given per sequence, times the weight, which is the
same objective as heddle's (contract of the loss: both are linear in the advantage).
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "inference"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import driver
import steps


class Trainer:
    """One GRPOTrainer in this process."""

    def load(self, folder: str, adapter: str, threads: int, learning_rate: float, **_: Any) -> dict[str, Any]:
        """Import, load model and adapter, make the trainer."""
        import torch
        import transformers
        import trl
        from datasets import Dataset
        from peft import PeftModel

        torch.set_num_threads(threads)
        transformers.logging.set_verbosity_error()
        base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        arguments = trl.GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=8,
            num_generations=8,
            learning_rate=learning_rate,
            lr_scheduler_type="constant",
            adam_beta2=0.99,
            weight_decay=0.1,
            max_grad_norm=0.1,
            beta=0.0,
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            report_to="none",
        )
        self.trainer = trl.GRPOTrainer(
            model=PeftModel.from_pretrained(base, adapter, is_trainable=True),
            processing_class=transformers.AutoTokenizer.from_pretrained(folder),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=arguments,
            train_dataset=Dataset.from_list([{"prompt": "never generated from"}] * 8),
        )
        self.trainer.current_gradient_accumulation_steps = 1
        self.optimizer = self.trainer.create_optimizer()
        self.trainer.model.train()
        return {"version": trl.__version__, "dtype": "float32"}

    def batch(self, path: str) -> dict[str, Any]:
        """Lay a batch out as TRL's own preparation does: prompts padded in front, answers behind."""
        import torch

        sequences = steps.read_batch(path)
        starts = [sequence["mask"].index(True) for sequence in sequences]
        pairs = list(zip(sequences, starts, strict=True))
        prompts = [sequence["ids"][:start] for sequence, start in pairs]
        answers = [sequence["ids"][start:] for sequence, start in pairs]
        trained = steps.right([[int(flag) for flag in sequence["mask"][start:]] for sequence, start in pairs], 0)
        known = [[value or 0.0 for value in sequence["logprobs"][start:]] for sequence, start in pairs]
        self.inputs = {
            "prompt_ids": torch.tensor(steps.left(prompts, 0)),
            "prompt_mask": torch.tensor(steps.left([[1] * len(row) for row in prompts], 0)),
            "completion_ids": torch.tensor(steps.right(answers, 0)),
            "completion_mask": torch.tensor(steps.right([[1] * len(row) for row in answers], 0)),
            "tool_mask": torch.tensor(trained),
            "old_per_token_logps": torch.tensor(steps.right(known, 0.0)),
            "advantages": torch.tensor([sequence["advantage"] * sequence["weight"] for sequence in sequences]),
            "num_items_in_batch": torch.tensor(float(sum(map(sum, trained)))),
        }
        return {"tokens": sum(len(sequence["ids"]) for sequence in sequences)}

    def settings(self, loss_type: str, low: float, high: float, level: str) -> None:
        """Which objective: TRL's name of it, its bounds, and the level of the importance ratio."""
        trainer = self.trainer
        trainer.loss_type, trainer.epsilon_low, trainer.epsilon_high = loss_type, low, high
        trainer.importance_sampling_level = level

    def loss(self) -> dict[str, float]:
        """Loss and norm of the gradient; nothing is learned."""
        model = self.trainer.model
        loss = self.trainer._compute_loss(model, self.inputs)
        self.trainer.accelerator.backward(loss)
        norm = self.trainer.accelerator.clip_grad_norm_(model.parameters(), 1e9)
        self.optimizer.zero_grad(set_to_none=True)
        return {"loss": loss.item(), "grad_norm": float(norm)}

    def run(self, count: int) -> dict[str, Any]:
        """Whole gradient steps."""
        steps.forget_peak()
        return {"steps": steps.timed(self._step, count), **steps.memory()}

    def _step(self) -> dict[str, float]:
        model = self.trainer.model
        loss = self.trainer._compute_loss(model, self.inputs)
        self.trainer.accelerator.backward(loss)
        norm = self.trainer.accelerator.clip_grad_norm_(model.parameters(), self.trainer.args.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return {"loss": loss.item(), "grad_norm": float(norm)}


if __name__ == "__main__":
    trainer = Trainer()
    driver.serve(
        {
            "load": trainer.load,
            "batch": trainer.batch,
            "settings": trainer.settings,
            "loss": trainer.loss,
            "run": trainer.run,
        }
    )
