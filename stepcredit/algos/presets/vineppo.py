"""VinePPO: PPO whose values are sampled, not learned."""

from dataclasses import dataclass
from functools import partial

from stepcredit.algos.algorithm import KL, Algorithm, MonteCarlo
from stepcredit.algos.batch import Batch
from stepcredit.algos.credit import Credit
from stepcredit.algos.gae import step_gae
from stepcredit.algos.presets.ppo import clip_tokens, values_of
from stepcredit.algos.presets.settings import Count, NotNegative, Positive
from stepcredit.algos.weights import token_mean


@dataclass(frozen=True, kw_only=True)
class VinePPOSettings:
    """PPO with the value of a step taken from fresh continuations (arXiv:2410.01679)."""

    num_continuations: Count = 9
    """Fresh continuations of the state before each step."""
    epsilon: Positive = 0.2
    """Ratio kept within [1 - epsilon, 1 + epsilon]."""
    beta: NotNegative = 1e-4
    """KL coefficient of the reward (k1 against the starting policy)."""
    whiten_advantages: bool = True
    num_ppo_epochs: Count = 1
    num_mini_batches: Count = 1


def vineppo(s: VinePPOSettings) -> Algorithm:
    """VinePPO: a step's advantage is its reward plus what fresh continuations gain or lose by it.

    arXiv:2410.01679, eq. 7 and 8: A = r + V(after) - V(before), without a value network. The
    environment must replay; the tokens of the continuations count as sampled. Values
    are those of the environment's rewards, without KL and penalties.
    """

    def advantage(batch: Batch) -> Credit:
        values, final = values_of(batch)
        mask, ends = batch.action_mask, batch.step_end
        return step_gae(batch.rewards, values, mask, ends, gamma=1.0, lam=0.0, final_values=final)

    return Algorithm(
        advantage=advantage,
        trust_region=partial(clip_tokens, epsilon=s.epsilon, epsilon_high=s.epsilon),
        weight=token_mean,
        kl=KL(beta=s.beta, place="reward") if s.beta else None,
        baseline=MonteCarlo(num_continuations=s.num_continuations),
        num_iterations=s.num_ppo_epochs,
        num_mini_batches=s.num_mini_batches,
        whiten_advantages=s.whiten_advantages,
    )
