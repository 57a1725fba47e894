"""Scores the model: greedy transcripts of utterances that it has not heard."""

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import WhisperForConditionalGeneration, WhisperProcessor

from .model import START, decoder_prompt, features
from .utterances import Recordings, Span, Utterance

MAX_ERROR_S = 0.25  # of a segment's start and end
_LONGEST = 40  # tokens
_BATCH = 50
_SEGMENT = re.compile(r"<\|(\d+\.\d\d)\|>([^<]*)<\|(\d+\.\d\d)\|>")


@dataclass
class Score:
    """Right answers of all, by kind, and how far segment times are off."""

    right: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    errors_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def count(self, kind: str, expected: str, found: str) -> None:
        """Count an answer, which is right if it is equal to the letter."""
        self.asked[kind] += 1
        self.right[kind] += found == expected
        if found != expected:
            self.wrong.append(f"{kind}: {expected!r} -> {found!r}")

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {self.right[kind]}/{self.asked[kind]}" for kind in self.asked)
        near = sum(error <= MAX_ERROR_S for error in self.errors_s)
        mean = sum(self.errors_s) / max(1, len(self.errors_s))
        times = f"{near}/{len(self.errors_s)} times within {MAX_ERROR_S} s, mean {mean:.3f} s"
        return f"{kinds}; {times}"


def score(
    model: WhisperForConditionalGeneration,
    processor: WhisperProcessor,
    recordings: Recordings,
    *,
    seed: int,
    count: int,
) -> Score:
    """Transcribe `count` new utterances with times, and translate those in German without."""
    rng = random.Random(seed)
    result = Score()
    spoken: list[Utterance] = []
    while len(spoken) < count:
        utterance = recordings.utterance(rng)
        if utterance.words:
            spoken.append(utterance)
    for start in range(0, count, _BATCH):
        _score(result, model, processor, spoken[start : start + _BATCH])
    return result


def _score(result: Score, model: Any, processor: Any, spoken: Sequence[Utterance]) -> None:
    asked = [decoder_prompt(each.language, "transcribe", timestamps=True) for each in spoken]
    for utterance, text in zip(spoken, answers(model, processor, spoken, asked), strict=True):
        found = segments(text)
        said = "".join(words for _, words in found)
        result.count(f"transcribe {utterance.language}", utterance.text(utterance.language), said)
        if len(found) == len(utterance.segments):
            for (times, _), (expected, _) in zip(found, utterance.segments, strict=True):
                result.errors_s += [abs(a - b) for a, b in zip(times, expected, strict=True)]
        result.count("segments", str(len(utterance.segments)), str(len(found)))
    german = [each for each in spoken if each.language == "de"]
    asked = [decoder_prompt("de", "translate", timestamps=False)] * len(german)
    for utterance, text in zip(german, answers(model, processor, german, asked), strict=True):
        result.count("translate", utterance.text("en"), text)
    for utterance, text in zip(
        spoken, answers(model, processor, spoken, [START] * len(spoken), longest=1), strict=True
    ):
        result.count("language", f"<|{utterance.language}|>", text)


def segments(text: str) -> list[tuple[Span, str]]:
    """The segments of an output with times."""
    return [((float(a), float(b)), words) for a, words, b in _SEGMENT.findall(text)]


@torch.inference_mode()  # type: ignore[untyped-decorator]
def answers(
    model: Any,
    processor: WhisperProcessor,
    spoken: Sequence[Utterance],
    prompts: Sequence[str],
    *,
    longest: int = _LONGEST,
) -> list[str]:
    """Greedy outputs; the prompts have the same number of tokens."""
    tokenizer: Any = processor.tokenizer
    heard = model.model.encoder(features(processor, spoken)).last_hidden_state
    rows = [tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]
    ids = torch.tensor(rows)
    end = tokenizer.eos_token_id
    for _ in range(longest):
        logits = model(encoder_outputs=(heard,), decoder_input_ids=ids, use_cache=False).logits
        following = logits[:, -1].argmax(dim=-1)
        following[(ids[:, len(rows[0]) :] == end).any(dim=1)] = end
        ids = torch.cat([ids, following[:, None]], dim=1)
        if bool((following == end).all()):
            break
    written = ids[:, len(rows[0]) :].tolist()
    kept = [row[: row.index(end)] if end in row else row for row in written]
    return [tokenizer.convert_tokens_to_string(tokenizer.convert_ids_to_tokens(k)) for k in kept]
