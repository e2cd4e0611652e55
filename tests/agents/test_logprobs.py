import pytest
import torch

from stepcredit.agents.errors import ModelError
from stepcredit.agents.logprobs import token_logprobs, token_values
from stepcredit.agents.model import build_tiny, value_model
from stepcredit.agents.sizes import SIZES
from tests.agents.worlds import reference_logprobs, tiny

IDS = torch.tensor([[5, 9, 7, 4, 11], [6, 8, 10, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=torch.bool)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_position_t_speaks_of_token_t_given_what_precedes_it(temperature: float) -> None:
    model = tiny()
    logprobs = token_logprobs(model, IDS, MASK, temperature).logprobs
    for row in range(2):
        length = int(MASK[row].sum())
        expected = reference_logprobs(model, IDS[row, :length], temperature)
        assert logprobs[row, :length].tolist() == pytest.approx(expected, abs=1e-5)
        assert logprobs[row, length:].tolist() == [0.0] * (5 - length)


def test_entropy_is_that_of_the_distribution_the_token_was_drawn_from() -> None:
    model = tiny()
    with torch.no_grad():
        entropy = token_logprobs(model, IDS, MASK, 0.5).entropy
        p = torch.softmax(model(input_ids=IDS[:1, :3]).logits[0, -1].double() / 0.5, -1)
    assert float(entropy[0, 3]) == pytest.approx(float(-(p * p.log()).sum()), abs=1e-5)
    assert entropy[0, 0] == 0
    assert (entropy[1, 3:] == 0).all()


def test_what_is_padded_with_changes_nothing() -> None:
    model = tiny()
    other = IDS.masked_fill(~MASK, 13)
    assert torch.equal(
        token_logprobs(model, IDS, MASK, 1.0).logprobs,
        token_logprobs(model, other, MASK, 1.0).logprobs,
    )


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_topk_speaks_of_the_named_tokens_in_the_place_of_token_t(temperature: float) -> None:
    model = tiny()
    asked = torch.arange(30).reshape(2, 5, 3) % 13
    found = token_logprobs(model, IDS, MASK, temperature, topk_ids=asked).topk_logprobs
    assert found is not None and found.shape == (2, 5, 3)
    for row in range(2):
        length = int(MASK[row].sum())
        for column in range(3):
            for t in range(1, length):
                prefix_and_it = [*IDS[row, :t].tolist(), int(asked[row, t, column])]
                expected = reference_logprobs(model, prefix_and_it, temperature)[-1]
                assert float(found[row, t, column].detach()) == pytest.approx(expected, abs=1e-5)
        assert (found[row, 0] == 0).all() and (found[row, length:] == 0).all()
    assert token_logprobs(model, IDS, MASK, temperature).topk_logprobs is None


MIX_IDS = torch.tensor([[[0, 0], [8, 12], [0, 0], [6, 3], [0, 0]], [[0, 0]] * 5])
MIX_WEIGHTS = torch.tensor([[[0, 0], [0.75, 0.25], [0, 0], [0.5, 0.5], [0, 0]], [[0, 0]] * 5])


def test_a_mixed_token_is_read_as_the_mix_of_embeddings() -> None:
    model = tiny()
    read = token_logprobs(model, IDS, MASK, 0.5, mix_ids=MIX_IDS, mix_weights=MIX_WEIGHTS)
    table = model.model.embed_tokens.weight.detach()
    rows = [table[5], 0.75 * table[8] + 0.25 * table[12], table[7], 0.5 * table[6] + 0.5 * table[3]]
    for t in range(1, 5):
        with torch.no_grad():
            logits = model(inputs_embeds=torch.stack(rows[:t])[None]).logits[0, -1].double()
        expected = torch.log_softmax(logits / 0.5, -1)[IDS[0, t]]
        assert float(read.logprobs[0, t].detach()) == pytest.approx(float(expected), abs=1e-5)
    plain = token_logprobs(model, IDS, MASK, 0.5).logprobs
    assert torch.equal(read.logprobs[1], plain[1])
    assert torch.equal(read.logprobs[0, :2], plain[0, :2])
    assert (read.logprobs[0, 2:] - plain[0, 2:]).abs().min() > 1e-3


def test_the_gradient_of_a_mixed_token_goes_to_what_was_mixed() -> None:
    model = tiny()
    read = token_logprobs(model, IDS, MASK, 1.0, mix_ids=MIX_IDS, mix_weights=MIX_WEIGHTS)
    read.logprobs[0].sum().backward()
    grad = model.model.embed_tokens.weight.grad.abs().sum(-1)  # [V]
    # Token 9 was read as a mix of 8 and 12, token 4 as one of 6 and 3; nothing reads token 11.
    assert grad.nonzero()[:, 0].tolist() == [3, 5, 6, 7, 8, 12]


def critic_that_counts():
    """A critic whose output at position t is the sum of the tokens up to and with t."""

    class Counter(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return input_ids.cumsum(-1).float()

    return Counter()


def test_values_are_those_of_the_state_before_the_token() -> None:
    values = token_values(critic_that_counts(), IDS, MASK)
    assert values.tolist() == [[0, 5, 14, 21, 25], [0, 6, 14, 0, 0]]


def test_one_more_column_holds_the_value_after_the_last_token() -> None:
    ids = torch.nn.functional.pad(IDS, (0, 1))
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    values = token_values(critic_that_counts(), ids, mask)
    assert values[0, 5] == 36
    assert values[1, 3] == 24


def test_a_new_critic_says_zero_everywhere_and_shares_no_weight() -> None:
    policy = tiny()
    critic = value_model(policy)
    assert (token_values(critic, IDS, MASK) == 0).all()
    theirs = {p.data_ptr() for p in policy.parameters()}
    assert not theirs & {p.data_ptr() for p in critic.parameters()}
    assert torch.equal(
        critic.trunk.layers[0].mlp.up_proj.weight, policy.model.layers[0].mlp.up_proj.weight
    )
    token_values(critic, IDS, MASK).sum().backward()
    assert critic.head.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("size", SIZES)
def test_sizes_are_what_they_are_called(size: str) -> None:
    model = build_tiny(40, size, 0)
    count = sum(p.numel() for p in model.parameters())
    assert count == pytest.approx(float(size[:-1]) * 1e6, rel=0.12)
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    a = build_tiny(40, "0.12M", 3)
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after)
    torch.manual_seed(2)
    b, c = build_tiny(40, "0.12M", 3), build_tiny(40, "0.12M", 4)
    assert torch.equal(a.lm_head.weight, b.lm_head.weight)
    assert not torch.equal(a.lm_head.weight, c.lm_head.weight)
    assert torch.equal(a.model.embed_tokens.weight, b.model.embed_tokens.weight)


def test_an_unknown_size_is_refused() -> None:
    with pytest.raises(ModelError, match=r"size='3B': must be one of 0.12M, 0.2M"):
        build_tiny(40, "3B", 0)
