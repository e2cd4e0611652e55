"""Estimates of the KL divergence from a reference policy, at each sampled token.

docs/algorithms/kl.md says which gradient each one really is.
"""

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from stepcredit.algos.trust import ratio

ROUNDING = 1e-5
"""Nats by which two readings of one policy may differ: the sampler's, token by token, and the
trainer's, all tokens at once. Single precision leaves a tenth of that."""


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Return log pi - log pi_ref of the sampled token: unbiased for the KL, may be negative.

    In the reward, without gradient, it gives the exact reverse-KL gradient; in the loss its
    expected gradient is zero. [B, T].
    """
    return logprobs - ref_logprobs


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Return half the square of log pi - log pi_ref: biased, with the reverse-KL gradient. [B, T].

    Its expected gradient is that of KL(pi || pi_ref) (arXiv:2512.21852).
    """
    return 0.5 * (logprobs - ref_logprobs) ** 2


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Return pi_ref/pi - log(pi_ref/pi) - 1 (arXiv:2402.03300, eq. 4): never negative. [B, T].

    Unbiased for KL(pi || pi_ref); its expected gradient is that of KL(pi_ref || pi).
    """
    return ratio(ref_logprobs, logprobs) - (ref_logprobs - logprobs) - 1


def k3_plus(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Return the value of k3 with the gradient of k2: both are those of the reverse KL. [B, T]."""
    steer = k2(logprobs, ref_logprobs)
    return k3(logprobs, ref_logprobs).detach() + (steer - steer.detach())


def off_policy(kl: Tensor, logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """Return each token's KL term times pi/mu (arXiv:2512.02556, eq. 7). [B, T].

    Tokens were drawn from mu (`old_logprobs`). Terms whose value is unbiased, k1 and k3, need the
    gradient through the ratio: both become the exact reverse-KL gradient. Terms whose gradient is
    the right one already, k2 and k3_plus, need it left out: pass `logprobs.detach()`.
    """
    return kl * ratio(logprobs, old_logprobs)


KLTerm = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(logprobs, ref_logprobs, old_logprobs) -> KL of each token, all [B, T]."""


def kl_term(name: Literal["k2", "k3", "k3+"], *, corrected: bool) -> KLTerm:
    """Return the loss term of that name, `corrected` for tokens that another policy sampled."""
    estimator = {"k2": k2, "k3": k3, "k3+": k3_plus}[name]

    def term(logprobs: Tensor, ref_logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
        kl = estimator(logprobs, ref_logprobs)
        if not corrected:
            return kl
        return off_policy(kl, logprobs if name == "k3" else logprobs.detach(), old_logprobs)

    return term


def adapted(beta: float, kl: float, *, target: float, horizon: float = 0.1) -> float:
    """Return the next KL coefficient: up where `kl` lies above `target`, down where below.

    beta x (1 + horizon x clip(kl/target - 1, -0.2, 0.2)) (arXiv:1909.08593).
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return beta * (1 + horizon * error)
