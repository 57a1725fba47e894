"""Makes the untrained model, its tokenizer and its processor: a small Whisper in all respects."""

import json
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)
from transformers.tokenization_utils_base import AddedToken

from .espeak import SAMPLE_RATE
from .utterances import DIGITS, WINDOW_S, Utterance, written

STEP_S = 0.02  # of timestamps, and of the encoder's output
FRAMES = int(WINDOW_S / STEP_S)  # of the encoder's output
POSITIONS = 96  # of the decoder
END, START, NO_SPEECH = "<|endoftext|>", "<|startoftranscript|>", "<|nospeech|>"
PREVIOUS, NO_TIMESTAMPS = "<|startofprev|>", "<|notimestamps|>"
_LANGUAGES = tuple(f"<|{code}|>" for code in DIGITS)
_TASKS = ("<|translate|>", "<|transcribe|>")
# In the order of Whisper's vocabulary
_MARKS = (START, *_LANGUAGES, *_TASKS, "<|startoflm|>", PREVIOUS, NO_SPEECH, NO_TIMESTAMPS)
_MEL_BINS = 40


def new_processor() -> WhisperProcessor:
    """A byte-level BPE in which each digit is a token, Whisper's marks and timestamps."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False)
    words = [f" {word}" for digits in DIGITS.values() for word in digits]
    bpe.train_from_iterator(words * 2, trainer)
    features = WhisperFeatureExtractor(
        feature_size=_MEL_BINS, sampling_rate=SAMPLE_RATE, chunk_length=int(WINDOW_S)
    )
    return WhisperProcessor(features, _tokenizer(json.loads(bpe.to_str())["model"]))


def _tokenizer(bpe: Any) -> WhisperTokenizer:
    merges = [tuple(merge) for merge in bpe["merges"]]
    tokenizer = WhisperTokenizer(vocab=bpe["vocab"], merges=merges)
    tokenizer.add_special_tokens({"additional_special_tokens": list(_MARKS)})
    # Whisper's timestamps are no special tokens: what skips those keeps the times.
    times = [f"<|{step * STEP_S:.2f}|>" for step in range(FRAMES + 1)]
    tokenizer.add_tokens([AddedToken(each, normalized=False) for each in times])
    tokenizer.set_prefix_tokens(language="en", task="transcribe")
    return tokenizer


def new_model(tokenizer: WhisperTokenizer) -> WhisperForConditionalGeneration:
    """0.9 million parameters, untrained."""
    end = tokenizer.convert_tokens_to_ids(END)
    config = WhisperConfig(
        vocab_size=-(-len(tokenizer) // 8) * 8,
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,  # of 32: a size that vLLM's attention has on CPUs
        decoder_attention_heads=4,
        encoder_ffn_dim=384,
        decoder_ffn_dim=384,
        num_mel_bins=_MEL_BINS,
        max_source_positions=FRAMES,
        max_target_positions=POSITIONS,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=tokenizer.convert_tokens_to_ids(START),
        dropout=0.0,
        dtype=torch.float32,
    )
    model = WhisperForConditionalGeneration(config)
    generation: Any = model.generation_config
    generation.is_multilingual = True
    generation.no_timestamps_token_id = tokenizer.convert_tokens_to_ids(NO_TIMESTAMPS)
    generation.lang_to_id = {each: tokenizer.convert_tokens_to_ids(each) for each in _LANGUAGES}
    generation.task_to_id = {each[2:-2]: tokenizer.convert_tokens_to_ids(each) for each in _TASKS}
    return model


def decoder_prompt(language: str, task: str, *, timestamps: bool) -> str:
    """What the decoder's output follows."""
    return f"{START}<|{language}|><|{task}|>" + ("" if timestamps else NO_TIMESTAMPS)


def transcript(utterance: Utterance, language: str, *, timestamps: bool) -> str:
    """What the model writes."""
    if not timestamps:
        return utterance.text(language)
    return "".join(
        f"{_time(start)}{written(words, language)}{_time(end)}"
        for (start, end), words in utterance.segments
    )


def _time(seconds: float) -> str:
    return f"<|{round(seconds / STEP_S) * STEP_S:.2f}|>"


def features(processor: WhisperProcessor, utterances: Sequence[Utterance]) -> torch.Tensor:
    """Float32 [utterances, mel bins, 100 per second of the window]."""
    found = processor.feature_extractor(
        [each.samples for each in utterances], sampling_rate=SAMPLE_RATE, return_tensors="pt"
    )
    values: torch.Tensor = found["input_features"]
    return values
