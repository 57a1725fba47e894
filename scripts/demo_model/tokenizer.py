"""Makes the tokenizer: a byte-level BPE with ChatML's special tokens and the chat template."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from .corpus import Document

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VOCABULARY_SIZE = 2048
# As in Qwen's tokenizers: tokens of their own, yet text, so that a parser sees them.
_MARKS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<tools>",
    "</tools>",
)
# A capital word never takes the space before it into its token, so that "Paris" after a quote is
# spelled as in a sentence and can be copied. Digits and line breaks stand alone. Punctuation keeps
# its inner spaces: `": "` is one token, which shortens JSON by a fifth.
_PIECES = (
    r"\n| I(?!\p{L})|\p{Lu}\p{L}*| ?\p{Ll}\p{L}*|\p{L}+| ?\p{N}"
    r"| ?[^\s\p{L}\p{N}]+(?: [^\s\p{L}\p{N}]+)*|\s"
)


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Learn the merges from rendered documents."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY_SIZE - len(_MARKS),
            special_tokens=[END_OF_TEXT, IM_START, IM_END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.add_tokens(list(_MARKS))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=IM_END,
        pad_token=END_OF_TEXT,
        chat_template=chat_template(),
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )


def chat_template() -> str:
    """ChatML with tools in Hermes form."""
    return Path(__file__).with_name("chat_template.jinja").read_text("utf-8")


def render(tokenizer: PreTrainedTokenizerFast, document: Document) -> str:
    """A document as the model reads it in training.

    Rendered with transformers, as when serving: jinja2's own ``tojson`` sorts keys and escapes.
    """
    if isinstance(document, str):
        return document + END_OF_TEXT
    text = tokenizer.apply_chat_template(
        list(document.messages), tools=list(document.tools) or None, tokenize=False
    )
    # The newline after the last <|im_end|> is never generated, so the document ends before it.
    return str(text).removesuffix("\n") + END_OF_TEXT


def renderer() -> PreTrainedTokenizerFast:
    """A tokenizer that can only render: it stands in until the real one has learned its merges."""
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), chat_template=chat_template()
    )
