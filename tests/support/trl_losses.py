"""What TRL's own trainers compute for given log-probabilities: cases as JSON on stdin, losses and gradients on stdout.

Runs where TRL can be imported. The trainers' `_compute_loss` is called with an object that has the settings of a
trainer, and a model that gives the log-probabilities of the case.
"""

import json
import sys
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_trainer import GRPOTrainer

Json = dict[str, Any]
ACCELERATOR = SimpleNamespace(
    num_processes=1,
    device=torch.device("cpu"),
    gather=lambda value: value,
    gather_for_metrics=lambda value: value,
    reduce=lambda value, reduction: value,
    sync_gradients=True,
)


def tensor(values: Any) -> Any:
    return torch.tensor(values, dtype=torch.float64)


def grpo(case: Json) -> Any:
    """The loss of GRPOTrainer for `new` [sequences, tokens]; `settings` are attributes of the trainer."""
    new = tensor(case["new"]).requires_grad_(True)
    mask = torch.tensor(case["mask"]).long()
    arguments = {
        "use_bias_correction_kl": False,
        "delta": None,
        "sapo_temperature_pos": 1.0,
        "sapo_temperature_neg": 1.05,
        "vespo_k_pos": 2.0,
        "vespo_lambda_pos": 3.0,
        "vespo_k_neg": 3.0,
        "vespo_lambda_neg": 2.0,
        "steps_per_generation": 1,
    }
    correction = case.get("correction")
    trainer = SimpleNamespace(
        args=SimpleNamespace(**arguments),
        accelerator=ACCELERATOR,
        model=SimpleNamespace(training=True),
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *_, **__: (new, torch.zeros_like(new), None),
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="token",
        beta=0.0,
        epsilon_low=0.2,
        epsilon_high=0.2,
        use_vllm=correction is not None,
        vllm_importance_sampling_correction=correction is not None,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=1,
        max_completion_length=case["length"],
    )
    vars(trainer).update(case["settings"])
    inputs = {
        "prompt_ids": torch.zeros(len(new), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(new), 1, dtype=torch.long),
        "completion_ids": torch.zeros(new.shape, dtype=torch.long),
        "completion_mask": mask,
        "advantages": tensor(case["advantages"]),
        "old_per_token_logps": tensor(case["old"]),
        "ref_per_token_logps": tensor(case["reference"]),
        "num_items_in_batch": torch.tensor(float(case["job_tokens"])),
    }
    if correction is not None:
        inputs["importance_sampling_ratio"] = tensor(correction)
    return GRPOTrainer._compute_loss(trainer, None, inputs), new


def dpo(case: Json) -> Any:
    """The loss of DPOTrainer; `new` has the chosen answers, then the rejected ones [2 pairs, tokens]."""
    new = tensor(case["new"]).requires_grad_(True)
    mask = torch.tensor(case["mask"]).long()
    chosen, rejected = tensor(case["reference"]).mul(mask).sum(1).chunk(2)
    nothing = torch.zeros_like(new)
    outputs = SimpleNamespace(log_probs=new * mask, entropy=nothing, mean_logits=nothing, is_top1=nothing.bool())
    trainer = SimpleNamespace(
        args=SimpleNamespace(),
        accelerator=ACCELERATOR,
        model=SimpleNamespace(training=True),
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        loss_types=["sigmoid"],
        loss_weights=[1.0],
        use_weighting=False,
        beta=case["beta"],
    )
    whole = torch.cat([torch.zeros(len(mask), 1, dtype=torch.long), mask], dim=1)
    inputs = {
        "input_ids": torch.zeros_like(whole),
        "attention_mask": torch.ones_like(whole),
        "completion_mask": whole,
        "ref_chosen_logps": chosen,
        "ref_rejected_logps": rejected,
    }
    return DPOTrainer._compute_loss(trainer, lambda **_: outputs, inputs, False), new


def main() -> None:
    """Compute every case."""
    results = []
    for case in json.load(sys.stdin):
        loss, new = {"grpo": grpo, "dpo": dpo}[case["trainer"]](case)
        loss.backward()
        results.append({"loss": loss.item(), "gradient": new.grad.tolist()})
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
