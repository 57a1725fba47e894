"""Scores the model: greedy answers about pictures it has not seen, exact to the letter."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from transformers import Idefics3ForConditionalGeneration, Idefics3Processor

from scripts.demo_model.evaluate import Score
from scripts.demo_model.exchange import Exchange

from .pictures import Scene, paint
from .questions import ScoredQuestion

_LONGEST_ANSWER = 80  # tokens


def answer(
    model: Idefics3ForConditionalGeneration, processor: Idefics3Processor, message: Any, image: Any
) -> str:
    """The greedy answer to a message about one picture."""
    text = processor.apply_chat_template([message], add_generation_prompt=True, tokenize=False)
    inputs = processor(images=[image], text=text, return_tensors="pt", add_special_tokens=False)
    with torch.inference_mode():
        ids = model.generate(**inputs, max_new_tokens=_LONGEST_ANSWER, do_sample=False)
    written = ids[0, inputs["input_ids"].shape[1] :]
    return str(processor.tokenizer.decode(written, skip_special_tokens=True))


def score(
    model: Any, processor: Idefics3Processor, questions: Sequence[ScoredQuestion], *, seed: int
) -> Score:
    """Ask each question about a new picture of 512 x 384 pixels."""
    rng = random.Random(seed)
    right: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    wrong = []
    for kind, scene, message, expected in questions:
        text = answer(model, processor, message, paint(rng, scene, 512, 384))
        asked[kind] += 1
        if text == expected:
            right[kind] += 1
        else:
            wrong.append((Exchange(kind, ({"content": _said(scene, message)},), (expected,)), text))
    return Score(right, asked, tuple(wrong))


def _said(scene: Scene, message: Any) -> str:
    return f"{scene} {message['content']}"
