import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from stepcredit import memory
from stepcredit.agents.engines.transformers import TransformersEngine
from stepcredit.agents.logprobs import token_logprobs
from stepcredit.agents.model import SIZES, build_tiny, value_model
from stepcredit.algos.presets import ALGORITHMS, build
from stepcredit.algos.settings import RunConfig
from stepcredit.cli import main
from stepcredit.memory import Memory, at_one_time, paper_of, sizes_of
from stepcredit.memory_measured import Sizes, cache_bytes, held, measure, saved_bytes
from stepcredit.memory_paper import Bytes, activations, cache, parameters, trained
from stepcredit.memory_table import largest

HAND: dict[str, Any] = {
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 2,
}
TRAIN = """
env: {id: stepcredit/Doors-v0, turns: 2, facts: 8}
model: {size: 0.12M, sft: {steps: 0}}
algo: {preset: ppo, num_generations: 4, beta: 0.02, value_mini_batches: 2}
train: {tasks_per_step: 2, micro_batch_size: 6, eval_episodes: 16}
"""


def llama(**changes: Any) -> LlamaConfig:
    return LlamaConfig(**{**HAND, **changes}, bos_token_id=None, eos_token_id=None)


def run(preset: str = "ppo", *, size: str = "0.12M", **algo: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "env": {"id": "stepcredit/Doors-v0"},
            "model": {"size": size},
            "algo": {"preset": preset, "num_generations": 4, **algo},
            "train": {"tasks_per_step": 2, "micro_batch_size": 6},
        }
    )


def both(config: RunConfig, *, tokens: int) -> tuple[dict[str, Bytes], dict[str, Bytes], Sizes]:
    algorithm = build(config.algo.preset, config.algo.further)
    sizes = sizes_of(config, algorithm, vocabulary=70, prompt=9, tokens=tokens)
    with torch.device("meta"):
        shape = build_tiny(70, config.model.size, 0).config
    return paper_of(shape, algorithm, sizes), measure(config, algorithm, sizes), sizes


# --- on paper, by hand ----------------------------------------------------------------------


def test_parameters_by_hand() -> None:
    # a layer: queries and output 2 x 8x8, keys and values 2 x 8x4, MLP 3 x 8x12, norms 2 x 8
    layer = 128 + 64 + 288 + 16
    assert parameters(llama(tie_word_embeddings=False)) == (88 + 2 * layer + 8 + 88, 21)
    assert parameters(llama(tie_word_embeddings=True)) == (88 + 2 * layer + 8, 20)
    assert parameters(llama(), value_head=True) == (88 + 2 * layer + 8 + 9, 22)


def test_adam_keeps_two_moments_a_weight_and_a_count_a_tensor() -> None:
    shape = llama(tie_word_embeddings=True)
    assert trained(shape) == Bytes(weights=4352, gradients=4352, optimizer=2 * 4352 + 20 * 4)
    assert trained(shape).kept == 3 * 4352 + 4352 + 80
    half = llama(tie_word_embeddings=True, dtype="bfloat16")
    assert trained(half) == Bytes(weights=2176, gradients=2176, optimizer=2 * 2176 + 20 * 4)


def test_activations_by_hand() -> None:
    # a norm: 8 in, 1 mean, 8 normalised, 8 out; attention: 8 + 4 + 4 + 8 wide, 4 denominators
    layer = 2 * 25 + 24 + 4 + 4 * 12
    position = 4 * (2 * layer + 25 + 2 * 11) + 8
    angles = 4 * 2 * 2 * 5
    assert activations(llama(), rows=3, tokens=6) == 3 * 5 * position + angles
    critic = position - 4 * 2 * 11
    assert activations(llama(), rows=3, tokens=6, value_head=True) == 3 * 5 * critic + angles


def test_half_precision_keeps_norm_inputs_and_the_softmax_over_words_in_fp32() -> None:
    layer = 2 * (4 * 8 + 4 + 2 * 8 + 2 * 8) + 2 * 24 + 4 * 4 + 2 * 4 * 12
    position = 2 * layer + 68 + 4 * 2 * 11 + 8
    half = llama(dtype="bfloat16")
    assert activations(half, rows=3, tokens=6) == 3 * 5 * position + 2 * 2 * 2 * 5


@pytest.mark.parametrize(
    ("prompt", "tokens", "columns"),
    [
        pytest.param(5, 32, 32, id="one block"),
        pytest.param(5, 33, 64, id="one column too many"),
        pytest.param(31, 33, 64, id="a prompt of one block"),
        pytest.param(32, 33, 64, id="a prompt of two blocks"),
        pytest.param(5, 100, 128, id="doubled twice"),
        pytest.param(40, 129, 256, id="two blocks doubled"),
        pytest.param(70, 97, 192, id="three blocks doubled"),
        pytest.param(99, 97, 128, id="a prompt longer than the episode"),
    ],
)
def test_cache_is_what_the_engine_allocates(prompt: int, tokens: int, columns: int) -> None:
    model = LlamaForCausalLM(llama())
    sizes = Sizes(
        vocabulary=11, prompt=prompt, tokens=tokens, episodes=3, policy_rows=1, critic_rows=0
    )
    by_hand = 2 * 2 * 4 * 4 * 3 * columns  # keys and values, layers, width, bytes, rows
    assert cache(model.config, rows=3, prompt=prompt, tokens=tokens) == by_hand
    assert cache_bytes(TransformersEngine(model, stop_id=0), sizes) == by_hand


# --- on paper and measured ------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("heads", [(4, 4, 8), (8, 2, 16), (6, 1, 128), (14, 2, None)])
def test_parameters_are_those_of_real_models(
    tied: bool, bias: bool, heads: tuple[int, int, int | None]
) -> None:
    shape = llama(
        vocab_size=32003,
        hidden_size=1344,
        intermediate_size=3000,
        num_hidden_layers=5,
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
        head_dim=heads[2],
        tie_word_embeddings=tied,
        attention_bias=bias,
        mlp_bias=bias,
    )
    with torch.device("meta"):
        policy = LlamaForCausalLM(shape)
        critic = value_model(policy)
    for model, value_head in ((policy, False), (critic, True)):
        own = list(model.parameters())
        assert parameters(shape, value_head=value_head) == (sum(p.numel() for p in own), len(own))


@pytest.mark.parametrize("tokens", [24, 150])
@pytest.mark.parametrize("size", SIZES)
def test_paper_agrees_with_a_measured_step(size: str, tokens: int) -> None:
    paper, measured, _ = both(run(size=size, beta=0.02), tokens=tokens)
    assert list(paper) == list(measured) == ["policy", "critic", "reference"]
    for name, each in paper.items():
        assert replace(measured[name], activations=0) == replace(each, activations=0)
        assert measured[name].activations == pytest.approx(each.activations, rel=0.01)


@pytest.mark.parametrize("preset", ALGORITHMS)
def test_paper_agrees_with_every_preset(preset: str) -> None:
    paper, measured, _ = both(run(preset), tokens=40)
    assert list(paper) == list(measured)
    for name, each in paper.items():
        assert replace(measured[name], activations=0) == replace(each, activations=0)
        assert measured[name].activations == pytest.approx(each.activations, rel=0.15)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_activations_of_grouped_heads_and_half_precision(dtype: str) -> None:
    model = LlamaForCausalLM(llama(hidden_size=96, intermediate_size=200, head_dim=16))
    model = model.to(getattr(torch, dtype))
    model.config.dtype = getattr(torch, dtype)
    ids, everything = torch.ones((3, 41), dtype=torch.int64), torch.ones((3, 41), dtype=torch.bool)

    def read() -> None:
        kept.append(token_logprobs(model, ids, everything, 1.0))

    kept: list[Any] = []
    # the id that is not read, and two masks
    rest = 3 * 8 + 2 * 3 * 41
    assert saved_bytes(model, read) == activations(model.config, rows=3, tokens=41) + rest


def test_a_storage_is_counted_once() -> None:
    whole = torch.zeros(10)
    assert held([whole, whole[:5], whole.view(2, 5)]) == 40


def test_a_micro_batch_is_no_larger_than_a_mini_batch() -> None:
    config = run(num_mini_batches=3, value_mini_batches=1)
    sizes = sizes_of(config, build("ppo", config.algo.further), vocabulary=70, prompt=9, tokens=40)
    assert (sizes.episodes, sizes.policy_rows, sizes.critic_rows) == (8, 3, 6)


# --- the table ------------------------------------------------------------------------------


def test_activations_and_caches_take_turns() -> None:
    models = {
        "policy": Bytes(weights=1, gradients=2, optimizer=4, activations=80, cache=16),
        "critic": Bytes(weights=10, gradients=20, optimizer=40, activations=90),
    }
    assert memory.total(models) == 263
    assert at_one_time(models) == 7 + 70 + 90
    _, _, sizes = both(run("grpo"), tokens=20)
    told = Memory(sizes=sizes, paper=models, measured=None, notes=[])
    assert largest(told) == "largest: the critic's activations, 90 B of 263 B (34%)"
    first = replace(models["policy"], cache=300)
    told = replace(told, measured={**models, "policy": first})
    assert told.dominant == ("policy", "cache")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("train.yaml").write_text(TRAIN)
    return "train.yaml"


def test_command_prints_paper_beside_measured(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["memory", config]) == 0
    out = capsys.readouterr().out
    words = [line.split() for line in out.splitlines()]
    assert words[1][:2] == ["policy", "weights"] and words[1][2] == words[1][3]
    assert "largest: the policy's " in out
    assert "the longest of 16 demonstrated episodes; none can have more than 2048" in out
    assert "an evaluation holds 16 episodes: a cache of" in out

    assert main(["memory", config, "--json", "--tokens", "50", "algo.preset=vineppo"]) == 2
    assert "algo.value_mini_batches" in capsys.readouterr().err

    assert main(["memory", config, "--json", "--tokens", "50"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["models"]) == ["policy", "critic", "reference"]
    assert found["sizes"]["tokens"] == 50
    weights = {name: each["measured"]["weights"] for name, each in found["models"].items()}
    assert (
        weights["policy"] == weights["reference"] == found["models"]["policy"]["paper"]["weights"]
    )
    # two moments of each weight, and a count for each of 21 tensors
    policy = found["models"]["policy"]["measured"]
    assert policy["optimizer"] == 2 * policy["weights"] + 21 * 4
    whole = sum(sum(each["measured"].values()) for each in found["models"].values())
    assert found["total"]["measured"] == whole > found["at_one_time"]["measured"]


def test_continuations_of_every_step_are_said(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        Path(config).read_text().replace("preset: ppo,", "preset: vineppo, num_continuations: 3,")
    )
    Path(config).write_text(text.replace(", value_mini_batches: 2", ""))
    assert main(["memory", config, "--json", "--tokens", "30"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["models"]) == ["policy", "reference"]
    # 2 tasks x 4 episodes x 2 doors x 3; 2 x 2 layers x 64 wide x 4 bytes x 32 columns each
    assert "continuing each step holds 48 episodes: a cache of 1.6 MB" in found["notes"]


def test_what_would_not_fit_is_not_measured(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 1_000_000)
    assert main(["memory", config, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["models"]["policy"]["measured"] is found["total"]["measured"] is None
    assert found["total"]["paper"] > 0
    assert "not measured: that takes about" in found["notes"][-1]
    assert main(["memory", config]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-1] == "-"


def test_free_memory_is_at_most_all_there_is() -> None:
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < memory.free_bytes() <= whole


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["absent.yaml"], "absent.yaml"),
        (["train.yaml", "train.micro_batchsize=3"], "did you mean train.micro_batch_size?"),
        (["train.yaml", "train.micro_batch_size=0"], "must be at least 1"),
        (["train.yaml", "algo.preset=gropo"], "did you mean grpo?"),
        (["train.yaml", "--tokens", "1"], "--tokens 1: must lie in [2, 2048]"),
        (["train.yaml", "--tokens", "2049"], "rollout.max_episode_tokens=2048"),
        (["train.yaml", "rollout.max_episode_tokens=9000", "--tokens", "5000"], "reads 4096"),
        (["study.yaml"], "study.yaml: is a study; pass the config of one run"),
    ],
)
def test_mistakes_are_refused(
    config: str, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("study.yaml").write_text("seeds: [0]\narms: {}\n")
    assert main(["memory", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_tokens_must_be_a_number(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["memory", config, "--tokens", "many"])
    assert left.value.code == 2
    assert "--tokens many: must be a whole number" in capsys.readouterr().err
