"""The losses that a job or a Tinker client may name, each as its paper has it.

Nothing here imports torch: the server checks a job's settings against the same table that the trainer computes with.
"""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.training.losses.base import Loss, LossName, Option, Terms, clipped_surrogate, k3, sum_segments

if TYPE_CHECKING:
    from torch import Tensor


def cispo(terms: Terms) -> "Tensor":
    """CISPO: the clipped ratio weighs the logprob and has no gradient (MiniMax-M1, arXiv:2506.13585).

    loss = -sg(clip(r, 1 - epsilon, 1 + epsilon_high)) A log p, r = exp(log p - log m). ART's objective and default:
    epsilon 1 and epsilon_high 4 keep the ratio within [0, 5]; every trajectory counts once.
    """
    return -terms.ratios.detach().clamp(terms.low, terms.high) * terms.advantages * terms.new


CISPO = Loss(
    "cispo",
    cispo,
    aggregation="trajectory",
    bounds=(1.0, 4.0),
    levels=("token", "sequence", "average", "geometric_average"),
)


PPO = Loss(
    "ppo",
    clipped_surrogate,
    aggregation="trajectory",
    bounds=(0.2, None),
    levels=("token", "sequence", "average", "geometric_average"),
)
"""PPO's clipped surrogate (Schulman et al., arXiv:1707.06347), as ART computes it.

loss = -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A), r = exp(log p - log m); every trajectory counts once.
"""


GRPO = Loss("grpo", clipped_surrogate, aggregation="sequence_mean", bounds=(0.2, None), levels=("token", "sequence"))
"""GRPO: group relative advantages, and a mean over sequences of their means (DeepSeekMath, arXiv:2402.03300).

loss = 1/S sum_i 1/T_i sum_t -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A). At the level `sequence` r is that of
GSPO with the gradient through the mean.
"""


DR_GRPO = Loss(
    "dr_grpo",
    clipped_surrogate,
    aggregation="constant",
    bounds=(0.2, None),
    options={"max_completion_length": Option(0.0)},
    scales_rewards=False,
)
"""Dr. GRPO: no division by a length or a standard deviation (Liu et al., arXiv:2503.20783).

loss = 1/(S L) sum_i sum_t -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A), A = reward - mean of its group.
L is `max_completion_length`; 0 stands for the most trained tokens of a sequence of the job.
"""


DAPO = Loss("dapo", clipped_surrogate, aggregation="job_token_mean", bounds=(0.2, 0.28))
"""DAPO: clip higher, and a mean over the tokens of the whole job (Yu et al., arXiv:2503.14476).

loss = 1/N sum_i sum_t -min(r A, clip(r, 1 - 0.2, 1 + 0.28) A), with N the job's mean of tokens per gradient step.
"""


BNPO = Loss("bnpo", clipped_surrogate, aggregation="token_mean", bounds=(0.2, None))
"""BNPO as TRL names it: the clipped surrogate with a mean over the tokens of the gradient step.

loss = 1/N sum_i sum_t -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A), with N the step's tokens (TRL, loss_type
"bnpo"; the name is from Xiao et al., arXiv:2506.02864, whose Beta normalisation of rewards is not part of it).
"""


def gspo(terms: Terms) -> "Tensor":
    """GSPO: the ratio of a whole sequence, clipped as one (Zheng et al., arXiv:2507.18071, sections 4.1 and 4.3).

    s = exp(mean over the sequence of (log p - log m)); s_t = sg(s) p / sg(p), which has the value of s and the gradient
    of its own token (GSPO-token), so that advantages may differ within a sequence; with equal ones it is GSPO.
    loss = 1/S sum_i 1/T_i sum_t -min(s_t A, clip(s_t, 1 - 3e-4, 1 + 4e-4) A).
    """
    ratios = terms.ratios.detach() * (terms.new - terms.new.detach()).exp()
    return clipped_surrogate(replace(terms, ratios=ratios))


GSPO = Loss("gspo", gspo, aggregation="sequence_mean", bounds=(3e-4, 4e-4), levels=("sequence",))


def sapo(terms: Terms) -> "Tensor":
    """SAPO: a soft gate instead of a clip (Gao et al., arXiv:2511.20347).

    loss = 1/S sum_i 1/T_i sum_t -f(r) A, f(r) = 4 sigmoid(t (r - 1)) / t, with the temperature t `temperature_pos`
    where A > 0 and `temperature_neg` elsewhere.
    """
    is_good = (terms.advantages > 0).to(terms.new.dtype)
    options = terms.options
    temperatures = is_good * options["temperature_pos"] + (1 - is_good) * options["temperature_neg"]
    return -(temperatures * (terms.ratios - 1)).sigmoid() * 4 / temperatures * terms.advantages


SAPO = Loss(
    "sapo",
    sapo,
    aggregation="sequence_mean",
    levels=("token", "sequence"),
    options={"temperature_pos": Option(1.0, is_open=True), "temperature_neg": Option(1.05, is_open=True)},
)


LUSPO = Loss("luspo", clipped_surrogate, aggregation="sequence_sum", bounds=(0.2, None), levels=("sequence",))
"""LUSPO: GSPO's ratio without the division by the length, which favours short answers (arXiv:2602.05261).

loss = 1/S sum_i sum_t -min(s A, clip(s, 1 - epsilon, 1 + epsilon_high) A), s = exp(mean_t(log p - log m)).
"""


LOWEST, HIGHEST = math.log(1e-8), 20.0


def vespo(terms: Terms) -> "Tensor":
    """VESPO: a smooth weight of the whole sequence's ratio instead of a clip (arXiv:2602.10693), as TRL computes it.

    w = exp(sum over the sequence of (log p - log m)), phi(w) = exp(l) w^k exp(-l w) without a gradient, (k, l) =
    (`k_pos`, `lambda_pos`) where A >= 0, else (`k_neg`, `lambda_neg`); loss = 1/N sum_i sum_t -phi(w) A log p.
    Logarithms stay within [-20, 20], log w within [log 1e-8, 20]; weights of `importance_correction` are factors of w.
    """
    logarithms = (terms.new - terms.old).detach().clamp(-HIGHEST, HIGHEST)
    if terms.correction is not None:
        logarithms = logarithms + terms.correction.log().clamp(LOWEST, HIGHEST)
    logarithm = sum_segments(logarithms, terms.segments, terms.mask)[0].clamp(LOWEST, HIGHEST)
    is_good = (terms.advantages >= 0).to(terms.new.dtype)
    options = terms.options
    power = is_good * options["k_pos"] + (1 - is_good) * options["k_neg"]
    decay = (is_good * options["lambda_pos"] + (1 - is_good) * options["lambda_neg"]).clamp(min=1e-4)
    weights = (decay + power * logarithm - decay * logarithm.exp()).exp()
    return -weights.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) * terms.advantages * terms.new


VESPO = Loss(
    "vespo",
    vespo,
    aggregation="job_token_mean",
    options={"k_pos": Option(2.0), "lambda_pos": Option(3.0), "k_neg": Option(3.0), "lambda_neg": Option(2.0)},
    corrects_itself=True,
)


def dro(terms: Terms) -> "Tensor":
    """DRO: a squared pull towards the sampling policy instead of a ratio (arXiv:2405.19107, arXiv:2501.12599).

    loss = -(A log p - beta / 2 (log p - log m)^2), summed over tokens, and a mean over sequences. Tinker's `dro`.
    """
    return terms.options["beta"] / 2 * (terms.new - terms.old).square() - terms.advantages * terms.new


DRO = Loss("dro", dro, aggregation="sequence_sum", options={"beta": Option(0.05)})


def stable_reinforce(terms: Terms) -> "Tensor":
    """StableReinforce: the ratio is bounded before the exponential, outliers left out (R1-Reward, arXiv:2505.02835).

    r = exp(clip(log p - log m, -log `ratio_limit`, log `ratio_limit`)); tokens with |A| > `advantage_limit` (0: no
    limit) are left out; loss = 1/S sum_i 1/T_i sum_t -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A) + `kl_coeff`
    k3, where k3 = m/p - log(m/p) - 1 estimates the divergence from the sampling policy.
    Tinker's loss of this name has no published formula; its `kl_coeff` is taken as this one.
    """
    options = terms.options
    limit = math.log(options["ratio_limit"])
    ratios = (terms.new - terms.old).clamp(-limit, limit).exp()
    losses = clipped_surrogate(replace(terms, ratios=ratios))
    if options["advantage_limit"]:
        losses = losses * (terms.advantages.abs() <= options["advantage_limit"])
    return losses + options["kl_coeff"] * k3(terms.new, terms.old) if options["kl_coeff"] else losses


STABLE_REINFORCE = Loss(
    "stable_reinforce",
    stable_reinforce,
    aggregation="sequence_mean",
    bounds=(0.2, None),
    options={"ratio_limit": Option(1e3, 1.0, is_open=True), "advantage_limit": Option(3.0), "kl_coeff": Option(0.0)},
)


def importance_sampling(terms: Terms) -> "Tensor":
    """REINFORCE with importance sampling: the ratio is not bounded (Tinker's `importance_sampling`).

    loss = -r A, r = exp(log p - log m), summed over tokens, and a mean over sequences; on policy its gradient is that
    of -A log p (Williams, 1992).
    """
    return -terms.ratios * terms.advantages


IMPORTANCE_SAMPLING = Loss(
    "importance_sampling", importance_sampling, aggregation="sequence_sum", levels=("token", "sequence")
)


def reverse_kl(terms: Terms) -> "Tensor":
    """On-policy distillation: the reverse divergence from a teacher, token by token, on what the policy itself sampled.

    A = `coef` (log q - log m) for the teacher q, loss = -r A, r = exp(log p - log m), a mean over the step's tokens:
    the gradient is that of `coef` KL(p || q) at each state (Agarwal et al., arXiv:2306.13649; Gu et al.,
    arXiv:2306.08543; Lu, "On-Policy Distillation", 2025). `reward_coef` (0) times the advantage of the rewards is added
    to A.
    """
    assert terms.reference is not None
    advantages = terms.options["coef"] * (terms.reference - terms.old)
    if terms.options["reward_coef"]:
        advantages = advantages + terms.options["reward_coef"] * terms.advantages
    return -terms.ratios * advantages


REVERSE_KL = Loss(
    "reverse_kl",
    reverse_kl,
    aggregation="token_mean",
    options={"coef": Option(1.0, is_open=True), "reward_coef": Option(0.0)},
    needs_reference=True,
)


def cross_entropy(terms: Terms) -> "Tensor":
    """Cross-entropy of given tokens, as fine-tuning and Tinker's `cross_entropy` minimise it: loss = -w log p.

    Fine-tuning: w = 1 and a mean over the step's trained tokens.
    """
    return -terms.new


CROSS_ENTROPY = Loss("cross_entropy", cross_entropy, aggregation="token_mean")


LOSSES: dict[LossName, Loss] = {
    loss.name: loss
    for loss in (
        *(CISPO, PPO, GRPO, DR_GRPO, DAPO, BNPO, GSPO, SAPO, LUSPO, VESPO, DRO, STABLE_REINFORCE),
        *(IMPORTANCE_SAMPLING, REVERSE_KL, CROSS_ENTROPY),
    )
}
