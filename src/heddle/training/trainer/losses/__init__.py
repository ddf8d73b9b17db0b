"""The losses that a job or a Tinker client may name: one file each, named as in the literature.

Nothing here imports torch: the server checks a job's settings against the same table that the trainer computes with.
"""

from heddle.training.trainer.losses.base import Loss, LossName
from heddle.training.trainer.losses.bnpo import BNPO
from heddle.training.trainer.losses.cispo import CISPO
from heddle.training.trainer.losses.cross_entropy import CROSS_ENTROPY
from heddle.training.trainer.losses.dapo import DAPO
from heddle.training.trainer.losses.dr_grpo import DR_GRPO
from heddle.training.trainer.losses.dro import DRO
from heddle.training.trainer.losses.grpo import GRPO
from heddle.training.trainer.losses.gspo import GSPO
from heddle.training.trainer.losses.importance_sampling import IMPORTANCE_SAMPLING
from heddle.training.trainer.losses.luspo import LUSPO
from heddle.training.trainer.losses.ppo import PPO
from heddle.training.trainer.losses.reverse_kl import REVERSE_KL
from heddle.training.trainer.losses.sapo import SAPO
from heddle.training.trainer.losses.stable_reinforce import STABLE_REINFORCE
from heddle.training.trainer.losses.vespo import VESPO

LOSSES: dict[LossName, Loss] = {
    loss.name: loss
    for loss in (
        CISPO,
        PPO,
        GRPO,
        DR_GRPO,
        DAPO,
        BNPO,
        GSPO,
        SAPO,
        LUSPO,
        VESPO,
        DRO,
        STABLE_REINFORCE,
        IMPORTANCE_SAMPLING,
        REVERSE_KL,
        CROSS_ENTROPY,
    )
}
