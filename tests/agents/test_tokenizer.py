import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepcredit.agents.errors import EncodingError
from stepcredit.agents.tokenizer import build_char_tokenizer

AWKWARD = "ab <>/|\n\t0é😀ue"


@given(st.text(alphabet=AWKWARD))
def test_text_over_the_alphabet_survives(text: str) -> None:
    tokenizer = build_char_tokenizer(AWKWARD)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_one_token_per_character_after_five_specials() -> None:
    tokenizer = build_char_tokenizer("ba")
    assert tokenizer.convert_ids_to_tokens(range(7)) == [
        "<pad>",
        "<s>",
        "<u>",
        "<a>",
        "<e>",
        "a",
        "b",
    ]
    assert len(tokenizer) == 7
    assert tokenizer.encode("abba", add_special_tokens=False) == [5, 6, 6, 5]


def test_the_template_frames_every_role() -> None:
    tokenizer = build_char_tokenizer("abcd")
    talk = [
        {"role": "system", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"},
        {"role": "tool", "content": "d"},
    ]
    shown = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    assert shown == "<s>a<u>b<a>c<e><u>d<a>"


def test_an_empty_alphabet_is_refused() -> None:
    with pytest.raises(EncodingError, match="at least one character"):
        build_char_tokenizer("")
