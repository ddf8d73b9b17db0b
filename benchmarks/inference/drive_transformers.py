"""Driver of `transformers`: `generate` with one static batch, no reuse of prefixes."""

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import driver


class Generator:
    """One model in this process."""

    def load(self, folder: str, threads: int, dtype: str, **_: Any) -> dict[str, Any]:
        """Import and load."""
        import torch
        import transformers

        torch.set_num_threads(threads)
        transformers.logging.set_verbosity_error()
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        return {"version": transformers.__version__, "dtype": dtype}

    def generate(self, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
        """All prompts (of one length) as one batch, greedily, end of sequence ignored."""
        import torch

        timeline = driver.Timeline(len(prompts), tokens, [os.getpid()])

        def after_step(token_ids: Any, _scores: Any, **_: Any) -> Any:
            for stream in range(len(prompts)):
                timeline.token(stream)
            return torch.zeros(token_ids.shape[0], dtype=torch.bool)

        ids = torch.tensor(prompts)
        with torch.inference_mode():
            self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                stopping_criteria=[after_step],
            )
        return timeline.result()


if __name__ == "__main__":
    generator = Generator()
    driver.serve({"load": generator.load, "generate": generator.generate})
