"""A character tokenizer as an ordinary transformers tokenizer, with a small chat template."""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from stepcredit.agents.errors import EncodingError

PAD, SYSTEM, USER, ASSISTANT, END = "<pad>", "<s>", "<u>", "<a>", "<e>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}<a>{{ message.content }}<e>"
    "{% elif message.role == 'system' %}<s>{{ message.content }}"
    "{% else %}<u>{{ message.content }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


def build_char_tokenizer(alphabet: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per character of `alphabet` and five framing tokens.

    Any text over the alphabet survives encoding and decoding unchanged.
    Raises EncodingError where the alphabet is empty.
    """
    if not alphabet:
        raise EncodingError("alphabet='': must name at least one character; pass env.alphabet")
    specials = [PAD, SYSTEM, USER, ASSISTANT, END]
    vocabulary = {token: i for i, token in enumerate([*specials, *sorted(set(alphabet))])}
    backend = Tokenizer(models.WordLevel(vocabulary))
    backend.add_special_tokens([AddedToken(token, special=True) for token in specials])
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT],
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
