"""Losses and gradients of stepcredit next to those of TRL's own GRPOTrainer, on the same tensors.

    pip install trl
    python benchmarks/trl_parity.py

Builds a real `GRPOTrainer` on a tiny random model and calls its `_compute_loss`; the other side
composes stepcredit's trust regions, weights and KL terms. Rows hold tool tokens between policy
tokens and padding after them, and the old policy differs from the current one, so that clips bind.
Prints TRL's version and the largest difference of loss and gradient of each case, relative where a
number exceeds 1. Exits 1 when one is above 1e-5, 2 without TRL.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from stepcredit.algos.kl import k3, off_policy
from stepcredit.algos.trust import cispo, clipped, sequence_clipped
from stepcredit.algos.weights import constant, sequence_mean, token_mean

TOLERANCE = 1e-5
ROWS, PROMPT, ANSWER, VOCABULARY = 6, 4, 14, 24
EPSILON, EPSILON_HIGH = 0.2, 0.28


@dataclass(frozen=True)
class Case:
    """One setting on both sides."""

    name: str
    trl: dict[str, Any]
    """GRPOConfig's arguments."""
    weigh: Callable[[Tensor], Tensor]
    surrogate: Callable[..., tuple[Tensor, Tensor]] = field(
        default=partial(clipped, epsilon=EPSILON, epsilon_high=EPSILON_HIGH)
    )
    beta: float = 0.0
    correct_kl: bool = False


def cases() -> list[Case]:
    weights = {
        "grpo": sequence_mean,
        "dr_grpo": partial(constant, max_tokens=ANSWER),
        "dapo": token_mean,
    }
    out = [
        Case(f"{name}, beta {beta}", {"loss_type": name}, weigh, beta=beta)
        for name, weigh in weights.items()
        for beta in (0.0, 0.04)
    ]
    dual = partial(clipped, epsilon=EPSILON, epsilon_high=EPSILON_HIGH, dual_clip=1.6)
    out.append(
        Case("grpo, two-sided clip", {"loss_type": "grpo", "delta": 1.6}, sequence_mean, dual)
    )
    dapo = {"loss_type": "dapo"}
    out.append(Case("dapo, KL x ratio", dapo, token_mean, beta=0.04, correct_kl=True))
    by_row = {"loss_type": "grpo", "importance_sampling_level": "sequence"}
    by_row |= {"epsilon": 0.02, "epsilon_high": 0.03}
    row_clip = partial(sequence_clipped, epsilon=0.02, epsilon_high=0.03)
    out.append(Case("gspo", by_row, sequence_mean, row_clip))
    # TRL bounds the ratio itself, not its distance from 1.
    bounded = {"loss_type": "cispo", "epsilon_high": 1.3}
    detached = partial(cispo, epsilon=1.0, epsilon_high=0.3)
    out.append(Case("cispo", bounded, token_mean, detached))
    return out


def rows() -> dict[str, Tensor]:
    """Return prompts, answers and masks as TRL's loss takes them."""
    completion_mask = torch.ones(ROWS, ANSWER, dtype=torch.int64)
    tool_mask = torch.ones(ROWS, ANSWER, dtype=torch.int64)
    for row in range(ROWS):
        completion_mask[row, ANSWER - row :] = 0
        tool_mask[row, 2 + row % 3 : 5 + row % 3] = 0
    return {
        "prompt_ids": torch.randint(3, VOCABULARY, (ROWS, PROMPT)),
        "prompt_mask": torch.ones(ROWS, PROMPT, dtype=torch.int64),
        "completion_ids": torch.randint(3, VOCABULARY, (ROWS, ANSWER)),
        "completion_mask": completion_mask,
        "tool_mask": tool_mask,
        "advantages": torch.randn(ROWS),
        "num_items_in_batch": (completion_mask * tool_mask).sum(),
    }


def answer_logprobs(model: LlamaForCausalLM, batch: dict[str, Tensor]) -> Tensor:
    """Return log-probabilities of the answers' tokens. [ROWS, ANSWER]."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    logits = model(input_ids=ids).logits[:, PROMPT - 1 : -1]
    return torch.log_softmax(logits, -1).gather(-1, batch["completion_ids"][..., None]).squeeze(-1)


def gradient(model: LlamaForCausalLM, loss: Tensor) -> Tensor:
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).clone()


def ours(case: Case, folder: str, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    logprobs, old = answer_logprobs(model, batch), batch["old_per_token_logps"]
    advantages = batch["advantages"][:, None].expand_as(logprobs)
    by_row = (mask,) if "importance_sampling_level" in case.trl else ()
    surrogate, _ = case.surrogate(logprobs, old, advantages, *by_row)
    weights = case.weigh(mask)
    loss = -(weights * surrogate).sum()
    if case.beta:
        kl = k3(logprobs, batch["ref_per_token_logps"])
        kl = off_policy(kl, logprobs, old) if case.correct_kl else kl
        loss = loss + case.beta * (weights * kl).sum()
    return loss.detach(), gradient(model, loss)


def theirs(case: Case, folder: str, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    vocabulary = {f"w{i}": i for i in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="w0")),
        pad_token="w0",
        eos_token="w1",
    )
    settings: dict[str, Any] = {"epsilon": EPSILON, "epsilon_high": EPSILON_HIGH}
    settings |= {"beta": case.beta, "use_bias_correction_kl": case.correct_kl} | case.trl
    args = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=ROWS,
        num_generations=ROWS,
        gradient_accumulation_steps=1,
        max_completion_length=ANSWER,
        bf16=False,
        use_cpu=True,
        report_to=[],
        **settings,
    )
    trainer = GRPOTrainer(
        model=LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=args,
        train_dataset=Dataset.from_list([{"prompt": "w3 w4"}]),
        processing_class=tokenizer,
    )
    # `train` sets it before the first step.
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    loss = trainer._compute_loss(trainer.model, batch)
    return loss.detach(), gradient(trainer.model, loss)


def difference(a: Tensor, b: Tensor) -> float:
    """Return the largest difference, relative where a number exceeds 1."""
    return float(((a - b).abs() / b.abs().clamp(min=1)).max())


def main() -> int:
    try:
        import trl
    except ImportError:
        print("trl_parity needs TRL: pip install trl", file=sys.stderr)
        return 2
    disable_progress_bar()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        tie_word_embeddings=False,
        initializer_range=0.3,
    )
    batch = rows()
    print(f"TRL {trl.__version__}, torch {torch.__version__}; at most {TOLERANCE:g}\n")
    print(f"{'case':24}{'loss of TRL':>14}{'difference':>12}{'gradient':>12}")
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        model = LlamaForCausalLM(config)
        model.save_pretrained(folder)
        logprobs = answer_logprobs(model, batch).detach()
        batch["old_per_token_logps"] = logprobs + 0.3 * torch.randn_like(logprobs)
        batch["ref_per_token_logps"] = logprobs + 0.3 * torch.randn_like(logprobs)
        for case in cases():
            their_loss, their_gradient = theirs(case, folder, batch)
            our_loss, our_gradient = ours(case, folder, batch)
            of_loss = difference(our_loss, their_loss)
            of_gradient = difference(our_gradient, their_gradient)
            print(f"{case.name:24}{float(their_loss):14.7f}{of_loss:12.1e}{of_gradient:12.1e}")
            worst = max(worst, of_loss, of_gradient)
    print("\nagree" if worst <= TOLERANCE else f"\ndiffer by {worst:.1e}")
    return int(not worst <= TOLERANCE)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
