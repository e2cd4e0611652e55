"""Messages to token ids and sampled ids back to text, without ever encoding the same text twice.

A conversation grows by appending: the ids that the policy sampled stay as they are, and a turn adds
only what the chat template puts between them and the next generation.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import TypeVar

from transformers import PreTrainedTokenizerBase

from stepcredit.agents.errors import EncodingError, TemplateError
from stepcredit.envs import Message

MARK = "@@REPLY@@"
REPLACEMENT = "\ufffd"
CACHE_SIZE = 8192
SMALL = 64
WINDOW = 8

Pairs = tuple[tuple[str, str], ...]
Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")


class ChatRenderer:
    """Renders with one tokenizer's chat template, which is checked on construction."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        """Raises TemplateError where the template re-renders history; see `check_template`."""
        check_template(tokenizer)
        self.tokenizer = tokenizer
        self.stop_id: int = tokenizer.eos_token_id
        self.pad_id: int = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        self._prompt = _remembered(self._encode_prompt, _characters)
        self._delta = _remembered(self._encode_delta, _characters)
        self._reply = _remembered(self._encode_reply, len)
        self._action = _remembered(self._decode_action, len)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a fresh conversation, up to where the policy speaks."""
        return list(self._prompt(_hashable(messages)))

    def delta(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids that follow a reply's stop token, up to where the policy speaks."""
        return list(self._delta(_hashable(messages)))

    def reply(self, text: str) -> list[int]:
        """Return the ids of a text as a whole reply, its stop token included."""
        return list(self._reply(text))

    def action(self, sampled: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of a turn's sampled ids and each id's character range in it.

        The text is the decoding of exactly these ids without a final stop token, special tokens
        kept. The range of an id runs from the character that holds its first byte to the end of the
        one that holds its last; the stop token is the empty range at the end.
        """
        text, spans = self._action(tuple(sampled))
        return text, list(spans)

    def _encode_prompt(self, messages: Pairs) -> list[int]:
        return _encode(self.tokenizer, _render(self.tokenizer, _messages(messages), True))

    def _encode_delta(self, messages: Pairs) -> list[int]:
        return _encode(self.tokenizer, _delta_text(self.tokenizer, _messages(messages)))

    def _encode_reply(self, text: str) -> list[int]:
        return [*_encode(self.tokenizer, text), self.stop_id]

    def _decode_action(self, sampled: tuple[int, ...]) -> tuple[str, list[tuple[int, int]]]:
        ended = sampled[-1:] == (self.stop_id,)
        ids = list(sampled[:-1]) if ended else list(sampled)
        text = _decode(self.tokenizer, ids)
        spans = character_spans(self.tokenizer, ids, text)
        return text, [*spans, (len(text), len(text))] if ended else spans


def _remembered(
    call: Callable[[Key], Answer], weight: Callable[[Key], int]
) -> Callable[[Key], Answer]:
    """Keep the answers to small questions, which come again and again; large ones seldom do."""
    small = lru_cache(CACHE_SIZE)(call)
    return lambda key: small(key) if weight(key) <= SMALL else call(key)


def _hashable(messages: Sequence[Message]) -> Pairs:
    return tuple((message["role"], message["content"]) for message in messages)


def _messages(pairs: Pairs) -> list[Message]:
    return [Message(role=role, content=content) for role, content in pairs]


def _characters(pairs: Pairs) -> int:
    return sum(len(content) for _, content in pairs)


def character_spans(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], text: str
) -> list[tuple[int, int]]:
    """Return each id's character range in `text`, the decoding of all ids.

    Ids are decoded in growing windows that begin at a character boundary, so that ids which hold
    parts of a character (byte-level vocabularies) share that character, at linear cost.
    """
    spans: list[tuple[int, int]] = []
    done = 0  # characters of `text` that are complete
    first, base = 0, 0  # the window is ids[first:] and begins at character `base`
    before = ""
    for i in range(len(ids)):
        window = _decode(tokenizer, ids[first : i + 1])
        reach = base + len(window)
        # Another byte of a character that the decoding already gave up on.
        same = window == before and window.endswith(REPLACEMENT) and reach == done
        start = done - 1 if same else done
        done = max(done, base + _agreement(window, text[base : base + len(window)]))
        spans.append((start, max(done, min(reach, len(text)))))
        before = window
        if reach == done and i - first >= WINDOW:
            # The last id stays in sight: some decoders drop a blank at the front.
            alone = _decode(tokenizer, ids[i : i + 1])
            if alone and text[:done].endswith(alone):
                first, base, before = i, done - len(alone), alone
    return spans


def _agreement(a: str, b: str) -> int:
    """Return how many leading characters are the same."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def check_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that conversations can grow by appending.

    Raises TemplateError, naming the text where the renderings part, when the template has no stop
    token after a reply or renders earlier turns differently once later ones follow.
    """
    if getattr(tokenizer, "chat_template", None) is None:
        raise TemplateError("the tokenizer has no chat template; set tokenizer.chat_template")
    if tokenizer.eos_token is None:
        raise TemplateError("the tokenizer has no eos token; set the one that ends a reply")
    stop = tokenizer.eos_token
    ask, again = Message(role="user", content="a"), Message(role="user", content="b")
    for reply in (MARK, f"<think>\nc\n</think>\n\n{MARK}"):
        said = Message(role="assistant", content=reply)
        first = _render(tokenizer, [ask], True)
        second = _render(tokenizer, [ask, said, again], True)
        third = _render(tokenizer, [ask, said, again, said, again], True)
        _check_prefix(first + reply + stop, second)
        _check_prefix(second + reply + stop, third)
    after = _delta_text(tokenizer, [Message(role="user", content="")])
    if _encode(tokenizer, stop + after) != [tokenizer.eos_token_id, *_encode(tokenizer, after)]:
        raise TemplateError(
            f"the text after a reply, {after!r}, encodes differently once {stop!r} precedes it: "
            "the token that ends a reply must be special and must not strip what follows"
        )


def _check_prefix(short: str, longer: str) -> None:
    if longer.startswith(short):
        return
    at = _agreement(short, longer)
    raise TemplateError(
        f"the chat template re-renders history: {short[at : at + 40]!r} was generated, but once a "
        f"turn follows the template writes {longer[at : at + 40]!r} (after "
        f"{short[max(0, at - 40) : at]!r}); use a template that keeps earlier turns as they were"
    )


def _delta_text(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> str:
    """Return what the template puts between a reply's stop token and the next generation."""
    before = [Message(role="user", content="a"), Message(role="assistant", content=MARK)]
    text = _render(tokenizer, [*before, *messages], True)
    _, found, after = text.partition(MARK + tokenizer.eos_token)
    if not found:
        raise TemplateError(
            f"the chat template loses the reply before {list(messages)!r}: it must end a "
            f"reply with {tokenizer.eos_token!r}"
        )
    return after


def _render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], opening: bool) -> str:
    try:
        text = tokenizer.apply_chat_template(
            [{"role": m["role"], "content": m["content"]} for m in messages],
            tokenize=False,
            add_generation_prompt=opening,
        )
    except Exception as problem:  # a template may raise by itself, and is a program that may fail
        roles = ", ".join(m["role"] for m in messages)
        raise TemplateError(
            f"the chat template refuses messages of the roles {roles} ({problem}): send roles and "
            "an order that the model's template knows"
        ) from problem
    return str(text)


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    try:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    except Exception as problem:  # the tokenizers library raises bare Exception
        raise EncodingError(
            f"text {text[:80]!r} cannot be encoded ({problem}): every character must be in the "
            "tokenizer's vocabulary; add it to env.alphabet"
        ) from problem
    return ids


def _decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return str(
        tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    )
