"""Small tokenizers of several kinds, built by hand."""

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)


def sentencepiece() -> Tokenizer:
    """Like Llama 2's: words start with U+2581, and unknown characters become byte tokens."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"helowrd", "he", "▁w"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: rank for rank, token in enumerate(tokens)},
            merges=[("h", "e"), ("▁", "w")],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def word_piece() -> Tokenizer:
    """Like BERT's: the continuation of a word starts with ##."""
    tokens = ["[UNK]", "play", "##ing", "chess"]
    tokenizer = Tokenizer(
        models.WordPiece({token: rank for rank, token in enumerate(tokens)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A", pair="$A:0 $B:1", special_tokens=[]
    )
    return tokenizer


def of_words(*tokens: str) -> Tokenizer:
    """A tokenizer with these tokens that splits at spaces."""
    vocabulary = {token: rank for rank, token in enumerate(("[UNK]", *tokens))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# How families split text before merges: the regular expressions of their tokenizer.json
SPLITS = {
    "gpt2": None,  # the library's own
    "llama3": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}",
    "qwen2": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}",
    "marks": rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}|{_REST}",
    "gpt4o": (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        rf"{_CONTRACTIONS}?|"
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        rf"{_CONTRACTIONS}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}


def byte_level(family: str, texts: list[str]) -> Tokenizer:
    """Trained on the texts, with the split and the normalizer of the family."""
    pattern = SPLITS[family]
    tokenizer = Tokenizer(models.BPE())
    if family == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    steps = [] if pattern is None else [pre_tokenizers.Split(Regex(pattern), "isolated")]
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, whole])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=["<|begin|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A",
        pair="<|begin|> $A <|begin|> $B",
        special_tokens=[("<|begin|>", tokenizer.token_to_id("<|begin|>"))],
    )
    return tokenizer
