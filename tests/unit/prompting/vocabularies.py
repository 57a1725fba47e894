"""Small tokenizers of several kinds, built by hand."""

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors


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
