"""Trains in two stages: the tower learns to name what each part of a picture shows, with the
language model's own words; then all weights learn to answer questions.
"""

import logging
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import Idefics3ForConditionalGeneration, PreTrainedTokenizerFast

from scripts.demo_model import corpus
from scripts.demo_model.tokenizer import render
from scripts.demo_model.train import batches as text_batches
from scripts.demo_model.train import encode, rate, tensors

from .model import EXPANDED, IMAGE_SIDE, IMAGE_TOKEN, IMAGE_TOKENS
from .pictures import COLOURS, SHAPES, Scene, draw_scene, paint
from .questions import PictureChat, chat

log = logging.getLogger(__name__)

_NOTHING = "no"  # the word for an empty cell
_TOKENS_PER_SIDE = int(IMAGE_TOKENS**0.5)


@dataclass(frozen=True)
class Recipe:
    """How the model is trained."""

    seed: int = 9001
    tower_steps: int = 1_600
    tower_batch: int = 64
    tower_rate: float = 2e-3
    chat_steps: int = 2_700
    chat_batch: int = 24
    chat_rate: float = 1.2e-3
    naming_weight: float = 0.2
    """What the tower's task counts in chats."""
    text_every: int = 4
    """Of the steps with chats, one in so many is text without pictures, or it is forgotten."""
    text_documents: int = 6_000


def train(
    model: Idefics3ForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, recipe: Recipe
) -> Idefics3ForConditionalGeneration:
    """Run both stages; the losses are logged every 100 steps."""
    model.train()
    rng = random.Random(recipe.seed)
    naming = _Naming(model, tokenizer)
    tower = [*model.model.vision_model.parameters(), *model.model.connector.parameters()]
    steps = Steps(tower, recipe.tower_rate, recipe.tower_steps, "tower")
    for _ in range(recipe.tower_steps):
        scenes = [draw_scene(rng, "train") for _ in range(recipe.tower_batch)]
        steps.take(naming.loss(features(model, pixels(rng, scenes)), scenes))
    steps = Steps(list(model.parameters()), recipe.chat_rate, recipe.chat_steps, "chat")
    texts = _text_lessons(tokenizer, recipe)
    for step in range(recipe.chat_steps):
        if step % recipe.text_every == 0:
            steps.take(_text_loss(model, next(texts), tokenizer.pad_token_id), counted=False)
        else:
            chats = [chat(rng) for _ in range(recipe.chat_batch)]
            steps.take(_chat_loss(model, tokenizer, naming, rng, chats, recipe.naming_weight))
    return model.eval()


class Steps:
    """An optimizer with its schedule and log."""

    def __init__(self, weights: Sequence[Any], learning_rate: float, count: int, name: str) -> None:
        self._weights, self._rate, self._count, self._name = weights, learning_rate, count, name
        matrices = [w for w in weights if w.dim() > 1]
        others = [w for w in weights if w.dim() <= 1]
        self._optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.02}, {"params": others, "weight_decay": 0.0}],
            lr=learning_rate,
            betas=(0.9, 0.98),
            fused=True,
        )
        self._done, self._losses, self._started = 0, list[float](), time.monotonic()

    def take(self, loss: torch.Tensor, *, counted: bool = True) -> None:
        share = 0.03 + 0.97 * rate(self._done, self._count // 20, self._count)
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate * share
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._weights, 1.0)
        self._optimizer.step()
        self._done += 1
        if counted:
            self._losses.append(loss.item())
        if self._done % 100 == 0:
            mean = sum(self._losses) / len(self._losses)
            seconds, cpu = time.monotonic() - self._started, time.process_time()
            log.info(
                "%s %d  loss %.4f  %.0f s, %.0f s CPU", self._name, self._done, mean, seconds, cpu
            )
            self._losses.clear()


def pixels(rng: random.Random, scenes: Sequence[Scene]) -> torch.Tensor:
    """Float32 [pictures, 3, side, side], as the processor makes them."""
    rows = []
    for scene in scenes:
        side = rng.choice((2, 3, 4)) * IMAGE_SIDE
        picture = paint(rng, scene, side, side).resize((IMAGE_SIDE, IMAGE_SIDE), 1)
        rows.append(np.asarray(picture, dtype=np.float32).transpose(2, 0, 1))
    return torch.from_numpy(np.stack(rows) / 127.5 - 1.0)


def features(model: Idefics3ForConditionalGeneration, values: torch.Tensor) -> torch.Tensor:
    """Float32 [pictures, image tokens, hidden size], as the language model gets them."""
    hidden = model.model.vision_model(pixel_values=values).last_hidden_state
    return model.model.connector(hidden)


class _Naming:
    """The tower's task: each image token names colour and kind of its cell's shape.

    The head is the language model's own embeddings of the words, so the tower learns to speak them.
    """

    def __init__(self, model: Any, tokenizer: PreTrainedTokenizerFast) -> None:
        table = model.model.text_model.embed_tokens.weight.detach()
        common = table.mean(dim=0)

        def words(names: Sequence[str]) -> torch.Tensor:
            ids = [tokenizer.encode(f" {name}", add_special_tokens=False) for name in names]
            rows = torch.stack([table[each].mean(dim=0) - common for each in ids])
            return torch.nn.functional.normalize(rows, dim=1)

        self._colours = words([*COLOURS, _NOTHING])
        self._kinds = words([*SHAPES, _NOTHING])
        self._scale = 12.0 / float(table.norm(dim=1).mean())

    def loss(self, found: torch.Tensor, scenes: Sequence[Scene]) -> torch.Tensor:
        """Mean cross-entropy of both names over all image tokens."""
        colours, kinds = _labels(scenes)
        flat = found.flatten(0, 1) * self._scale
        return cross_entropy(flat @ self._colours.T, colours) + cross_entropy(
            flat @ self._kinds.T, kinds
        )


def _labels(scenes: Sequence[Scene]) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each image token: the index of its cell's colour and kind; the last means nothing."""
    colours, kinds, half = list(COLOURS), list(SHAPES), _TOKENS_PER_SIDE // 2
    found = []
    for scene in scenes:
        for token in range(IMAGE_TOKENS):
            row, column = divmod(token, _TOKENS_PER_SIDE)
            shape = scene[row // half * 2 + column // half]
            found.append(
                (colours.index(shape.colour), kinds.index(shape.kind))
                if shape
                else (len(colours), len(kinds))
            )
    first, second = zip(*found, strict=True)
    return torch.tensor(first), torch.tensor(second)


def _chat_loss(
    model: Any,
    tokenizer: PreTrainedTokenizerFast,
    naming: _Naming,
    rng: random.Random,
    chats: Sequence[PictureChat],
    naming_weight: float,
) -> torch.Tensor:
    texts = [_rendered(tokenizer, each.messages) for each in chats]
    rows = [[row] for row in encode(tokenizer, texts)]
    ids, weights = tensors(rows, tokenizer.pad_token_id, 0)
    scenes = [scene for each in chats for scene in each.scenes]
    found = features(model, pixels(rng, scenes))
    embedded = model.model.text_model.embed_tokens(ids)
    places = (ids == model.config.image_token_id).unsqueeze(-1)
    embedded = embedded.masked_scatter(places, found)
    named = naming.loss(found, scenes)
    return _answer_loss(model, embedded, ids, weights) + naming_weight * named


def _rendered(tokenizer: PreTrainedTokenizerFast, messages: Sequence[Any]) -> str:
    text = tokenizer.apply_chat_template(list(messages), tokenize=False)
    return str(text).removesuffix("\n").replace(IMAGE_TOKEN, EXPANDED)


def _text_lessons(tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> Iterator[Any]:
    """The text demo's own corpus, over and over."""
    texts = [render(tokenizer, d) for d in corpus.documents(recipe.seed + 1, recipe.text_documents)]
    documents = encode(tokenizer, texts)
    rng = random.Random(recipe.seed)
    while True:
        yield from text_batches(documents, rng)


def _text_loss(model: Any, batch: Any, pad: int) -> torch.Tensor:
    ids, weights = tensors(batch, pad, 0.0)
    return _answer_loss(model, model.model.text_model.embed_tokens(ids), ids, weights)


def _answer_loss(
    model: Any, embedded: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    hidden = model.model.text_model(inputs_embeds=embedded[:, :-1]).last_hidden_state
    wanted = weights[:, 1:] > 0
    return cross_entropy(model.lm_head(hidden[wanted]), ids[:, 1:][wanted])
