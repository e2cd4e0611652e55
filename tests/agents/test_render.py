import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from stepcredit.agents.errors import EncodingError, TemplateError
from stepcredit.agents.render import ChatRenderer, check_template
from stepcredit.envs import Message
from tests.agents.worlds import CHATML, TEXTS, byte_tokenizer, char_renderer

TEXT = st.one_of(st.sampled_from(TEXTS), st.text(max_size=12))
STRIPS_THOUGHT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last and '</think>' in m.content %}"
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def with_template(template: str | None) -> PreTrainedTokenizerFast:
    source = byte_tokenizer()
    return PreTrainedTokenizerFast(
        tokenizer_object=source.backend_tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        chat_template=template,
    )


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4), TEXT)
def test_appending_turns_equals_rendering_the_whole_talk(turns: list, last: str) -> None:
    tokenizer = byte_tokenizer()
    renderer = ChatRenderer(tokenizer)
    talk = [user(turns[0][0])]
    ids = renderer.prompt(talk)
    for number, (_, answer) in enumerate(turns):
        following = turns[number + 1][0] if number + 1 < len(turns) else last
        talk += [Message(role="assistant", content=answer), user(following)]
        ids += renderer.reply(answer) + renderer.delta([user(following)])
    whole = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    assert ids == tokenizer.encode(whole, add_special_tokens=False)


def test_a_delta_of_several_messages_keeps_their_order_and_roles() -> None:
    renderer = char_renderer()
    ids = renderer.delta([Message(role="tool", content="ab"), user("c")])
    assert "".join(renderer.tokenizer.convert_ids_to_tokens(ids)) == "<u>ab<u>c<a>"


def test_a_template_that_drops_earlier_thoughts_is_refused_with_the_text() -> None:
    with pytest.raises(TemplateError, match=r"re-renders history: '<think>"):
        check_template(with_template(STRIPS_THOUGHT))


def test_a_template_without_a_stop_token_is_refused() -> None:
    no_end = CHATML.replace("<|im_end|>", "")
    with pytest.raises(TemplateError, match="re-renders history"):
        check_template(with_template(no_end))


def test_a_tokenizer_without_template_is_refused() -> None:
    with pytest.raises(TemplateError, match="no chat template"):
        check_template(with_template(None))


def test_an_end_token_that_swallows_what_follows_is_refused() -> None:
    backend = Tokenizer.from_str(byte_tokenizer().backend_tokenizer.to_str())
    backend.add_special_tokens([AddedToken("<|end|>", special=True, rstrip=True)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|end|>",
        chat_template=CHATML.replace("<|im_end|>", "<|end|>"),
    )
    with pytest.raises(TemplateError, match="encodes differently"):
        check_template(tokenizer)


def test_a_character_outside_the_alphabet_is_named() -> None:
    with pytest.raises(EncodingError, match="'<u>Z<a>' cannot be encoded"):
        char_renderer().prompt([user("Z")])


def first_characters(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> list[int]:
    """Character of each token's first byte, counted byte by byte."""
    names = {name: byte for byte, name in byte_names().items()}
    stream = [[names[c] for c in tokenizer.convert_ids_to_tokens(i)] for i in ids]
    starts_character = [byte & 0xC0 != 0x80 for token in stream for byte in token]
    firsts, seen = [], 0
    for token in stream:
        firsts.append(sum(starts_character[: seen + 1]) - 1)
        seen += len(token)
    return firsts


def byte_names() -> dict[int, str]:
    """The printable stand-ins of GPT-2's byte-level vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + n) for n, b in enumerate(hidden)}


@given(TEXT)
def test_each_token_starts_in_the_character_of_its_first_byte(text: str) -> None:
    tokenizer = byte_tokenizer()
    renderer = ChatRenderer(tokenizer)
    ids = renderer.reply(text)
    shown, spans = renderer.action(ids)
    assert shown == text
    assert spans.pop() == (len(text), len(text))
    assert [start for start, _ in spans] == first_characters(tokenizer, ids[:-1])
    assert all(
        text[start:end].encode().find(tokenizer.decode([i]).encode()) >= 0
        for i, (start, end) in zip(ids, spans, strict=False)
        if "\ufffd" not in tokenizer.decode([i])
    )


@given(st.lists(st.integers(0, 342), min_size=1, max_size=40), st.booleans())
def test_any_sampled_ids_have_ordered_ranges_inside_the_text(ids: list[int], ended: bool) -> None:
    renderer = ChatRenderer(byte_tokenizer())
    ids = [i for i in ids if i < len(renderer.tokenizer) and i != renderer.stop_id]
    if ended or not ids:
        ids = [*ids, renderer.stop_id]
    text, spans = renderer.action(ids)
    body = ids[:-1] if ids[-1] == renderer.stop_id else ids
    assert text == renderer.tokenizer.decode(body, skip_special_tokens=False)
    assert len(spans) == len(ids)
    starts = [start for start, _ in spans]
    assert starts == sorted(starts)
    assert starts[0] == 0
    assert all(start <= end <= len(text) for start, end in spans)
    covered = {c for start, end in spans for c in range(start, end)}
    assert covered == set(range(len(text)))


def test_long_texts_are_decoded_in_windows() -> None:
    renderer = ChatRenderer(byte_tokenizer())
    text = "x😀 1" * 200
    ids = renderer.reply(text)
    _, spans = renderer.action(ids)
    assert [s for s, _ in spans[:-1]] == first_characters(renderer.tokenizer, ids[:-1])


def test_a_cut_inside_an_emoji_keeps_its_bytes_on_one_character() -> None:
    renderer = ChatRenderer(byte_tokenizer())
    ids = renderer.reply("a🦀")[:-2]
    text, spans = renderer.action(ids)
    assert text == "a\ufffd"
    assert spans == [(0, 1), *[(1, 2)] * (len(ids) - 1)]
