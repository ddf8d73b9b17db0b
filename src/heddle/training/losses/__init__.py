"""The losses that a job or a Tinker client may name: one file each, named as in the literature.

Nothing here imports torch: the server checks a job's settings against the same table that the trainer computes with.
"""

from heddle.training.losses.base import Loss, LossName
from heddle.training.losses.bnpo import BNPO
from heddle.training.losses.cispo import CISPO
from heddle.training.losses.cross_entropy import CROSS_ENTROPY
from heddle.training.losses.dapo import DAPO
from heddle.training.losses.dr_grpo import DR_GRPO
from heddle.training.losses.dro import DRO
from heddle.training.losses.grpo import GRPO
from heddle.training.losses.gspo import GSPO
from heddle.training.losses.importance_sampling import IMPORTANCE_SAMPLING
from heddle.training.losses.luspo import LUSPO
from heddle.training.losses.ppo import PPO
from heddle.training.losses.reverse_kl import REVERSE_KL
from heddle.training.losses.sapo import SAPO
from heddle.training.losses.stable_reinforce import STABLE_REINFORCE
from heddle.training.losses.vespo import VESPO

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
