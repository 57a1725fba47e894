"""Trains in two stages: the encoder learns which digit is said at each moment; then all weights
learn to write what is said, in which language, and when.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import WhisperForConditionalGeneration, WhisperProcessor

from scripts.demo_vision.train import Steps

from .model import (
    END,
    FRAMES,
    NO_SPEECH,
    PREVIOUS,
    START,
    STEP_S,
    decoder_prompt,
    features,
    transcript,
)
from .utterances import DIGITS, Recordings, Utterance

_IGNORED = -100  # positions that no loss counts
_MOST_PREVIOUS = 40  # words


@dataclass(frozen=True)
class Recipe:
    """How the model is trained."""

    seed: int = 9001
    encoder_steps: int = 500
    encoder_rate: float = 2e-3
    steps: int = 2_400
    rate: float = 1.5e-3
    batch: int = 32
    naming_weight: float = 0.3
    """What the encoder's task counts in the second stage."""


def train(
    model: WhisperForConditionalGeneration,
    processor: WhisperProcessor,
    recordings: Recordings,
    recipe: Recipe,
) -> WhisperForConditionalGeneration:
    """Run both stages; the losses are logged every 100 steps."""
    model.train()
    rng = random.Random(recipe.seed)
    naming = _Naming(model.config.d_model)
    encoder = [*model.model.encoder.parameters(), *naming.parameters()]
    steps = Steps(_trained(encoder), recipe.encoder_rate, recipe.encoder_steps, "encoder")
    for _ in range(recipe.encoder_steps):
        spoken = [recordings.utterance(rng) for _ in range(recipe.batch)]
        steps.take(naming.loss(_heard(model, processor, spoken), spoken))
    everything = [*model.parameters(), *naming.parameters()]
    steps = Steps(_trained(everything), recipe.rate, recipe.steps, "all")
    for _ in range(recipe.steps):
        spoken = [recordings.utterance(rng) for _ in range(recipe.batch)]
        heard = _heard(model, processor, spoken)
        named = naming.loss(heard, spoken)
        written = _transcript_loss(model, processor.tokenizer, heard, rng, spoken)
        steps.take(written + recipe.naming_weight * named)
    return model.eval()


def _trained(weights: Sequence[Any]) -> list[Any]:
    """All but the encoder's positions, which are sines."""
    return [each for each in weights if each.requires_grad]


def _heard(model: Any, processor: WhisperProcessor, spoken: Sequence[Utterance]) -> torch.Tensor:
    hidden: torch.Tensor = model.model.encoder(features(processor, spoken)).last_hidden_state
    return hidden


class _Naming(torch.nn.Linear):  # type: ignore[misc]  # torch has no types here
    """The encoder's task: each of its outputs names the digit and language, or silence."""

    def __init__(self, size: int) -> None:
        self._languages = list(DIGITS)
        self._count = len(DIGITS[self._languages[0]])
        super().__init__(size, 1 + self._count * len(self._languages))

    def loss(self, heard: torch.Tensor, spoken: Sequence[Utterance]) -> torch.Tensor:
        """Mean cross-entropy over all outputs."""
        labels = torch.zeros(len(spoken), FRAMES, dtype=torch.long)
        for row, utterance in zip(labels, spoken, strict=True):
            first = 1 + self._count * self._languages.index(utterance.language)
            for word, (start, end) in zip(utterance.words, utterance.times, strict=True):
                row[round(start / STEP_S) : round(end / STEP_S)] = first + word
        return cross_entropy(self(heard).flatten(0, 1), labels.flatten())


def _transcript_loss(
    model: Any, tokenizer: Any, heard: torch.Tensor, rng: random.Random, spoken: Sequence[Utterance]
) -> torch.Tensor:
    after_text = rng.random() < 0.12
    rows = [_lesson(tokenizer, rng, each, after_text=after_text) for each in spoken]
    longest = max(len(ids) for ids, _ in rows)
    pad = tokenizer.eos_token_id
    ids = torch.tensor([[*ids, *[pad] * (longest - len(ids))] for ids, _ in rows])
    labels = torch.tensor([[*all_, *[_IGNORED] * (longest - len(all_))] for _, all_ in rows])
    logits = model(encoder_outputs=(heard,), decoder_input_ids=ids, use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1), labels.flatten())


def _lesson(
    tokenizer: Any, rng: random.Random, utterance: Utterance, *, after_text: bool
) -> tuple[list[int], list[int]]:
    """The decoder's input and what it shall write at each position."""
    timestamps = rng.random() < 0.6
    translate = rng.random() < 0.3
    language = "en" if translate else utterance.language
    task = "translate" if translate else "transcribe"
    prompt = _ids(tokenizer, decoder_prompt(utterance.language, task, timestamps=timestamps))
    before = _ids(tokenizer, _previous(rng, language)) if after_text else []
    written = _ids(tokenizer, transcript(utterance, language, timestamps=timestamps) + END)
    ids = [*before, *prompt, *written]
    labels = [*[_IGNORED] * (len(before) + len(prompt) - 1), *written]
    # Right after the start, the model says which language it hears, if any.
    named = prompt[1] if utterance.words else tokenizer.convert_tokens_to_ids(NO_SPEECH)
    labels[len(before) + prompt.index(tokenizer.convert_tokens_to_ids(START))] = named
    return ids[:-1], labels


def _previous(rng: random.Random, language: str) -> str:
    words = rng.choices(DIGITS[language], k=rng.randint(1, _MOST_PREVIOUS))
    return PREVIOUS + "".join(f" {word}" for word in words)


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids
