"""EVPO: PPO that uses its critic only while the critic explains something."""

from stepcredit.algos.algorithm import Algorithm
from stepcredit.algos.batch import Batch
from stepcredit.algos.credit import Credit
from stepcredit.algos.gae import evpo as gated
from stepcredit.algos.presets.ppo import PPOSettings, values_of, with_critic


def evpo(s: PPOSettings) -> Algorithm:
    """PPO that falls back to the batch's mean return while its critic explains nothing.

    EVPO (arXiv:2604.19485): a critic lowers the variance of the advantages just when the explained
    variance of its values is positive, which each batch tells.
    """

    def advantage(batch: Batch) -> Credit:
        values, final = values_of(batch)
        mask = batch.action_mask
        return gated(batch.rewards, values, mask, gamma=s.gamma, lam=s.lam, final_values=final)

    return with_critic(s, advantage, reads="steps")
