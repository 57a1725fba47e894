"""Trains the demo model: packed documents, AdamW, a cosine schedule, all seeded."""

import logging
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from .drill import Encoded, drill
from .initial_weights import initialize
from .tokenizer import END_OF_TEXT, IM_END, VOCABULARY_SIZE

log = logging.getLogger(__name__)

# Label of a token that does not count, as torch's cross entropy wants it.
_IGNORED = -100
# Rows per batch for each row length: always 512 tokens. Long rows take the long documents;
# the few that are longer still are a batch each.
_ROWS_PER_BATCH = {256: 2, 512: 1}
# Of the batches after the opening drill, one in so many is a drill as well.
_DRILL_EVERY = 8


@dataclass(frozen=True)
class Recipe:
    """How the model is trained."""

    seed: int = 9001
    documents: int = 60_000
    steps: int = 10_000
    drill_steps: int = 800
    """How many of the steps, the first ones, only copy random tokens."""
    warm_up_steps: int = 200
    learning_rate: float = 1.6e-3
    weight_decay: float = 0.05
    prompt_weight: float = 0.0
    """How much the loss on questions counts; on answers it counts 1. With 0.1 the model scored the
    same as with 0, which saves the output matrix for more than half of the tokens."""


def new_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """0.95 million parameters, not trained yet."""
    config = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(IM_END),
        pad_token_id=tokenizer.convert_tokens_to_ids(END_OF_TEXT),
        dtype=torch.float32,
    )
    model = LlamaForCausalLM(config)
    initialize(model)
    return model


def encode(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[Encoded]:
    """Token ids of rendered documents, with the answers marked; plain text is all answer."""
    start = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
    end = tokenizer.convert_tokens_to_ids(IM_END)
    batch = cast(list[list[int]], tokenizer(list(texts), add_special_tokens=False)["input_ids"])
    return [(ids, _answers(ids, start, end)) for ids in batch]


def _answers(ids: list[int], start: list[int], end: int) -> list[bool]:
    if end not in ids:
        return [True] * len(ids)
    marked, writing = [], False
    for i, token in enumerate(ids):
        marked.append(writing)
        if writing:
            writing = token != end
        elif token == start[-1]:
            writing = ids[i + 1 - len(start) : i + 1] == start
    return marked


def pack(documents: Sequence[Encoded], length: int) -> Iterator[list[Encoded]]:
    """Fill rows of this length with whole documents: each goes to the first open row with room."""
    rows: list[list[Encoded]] = []
    room: list[int] = []
    for document in documents:
        size = len(document[0])
        fitting = next((i for i, free in enumerate(room) if free >= size), None)
        if fitting is None and len(rows) == 16:
            fullest = room.index(min(room))
            room.pop(fullest)
            yield rows.pop(fullest)
        if fitting is None:
            rows.append([])
            room.append(length)
            fitting = len(rows) - 1
        rows[fitting].append(document)
        room[fitting] -= size
    yield from rows


def batches(documents: Sequence[Encoded], rng: random.Random) -> Iterator[list[list[Encoded]]]:
    """One epoch in random order; rows of a batch are equally long."""
    shuffled = rng.sample(list(documents), k=len(documents))
    short = [document for document in shuffled if len(document[0]) <= 256]
    long = [document for document in shuffled if 256 < len(document[0]) <= 512]
    found = [[[document]] for document in shuffled if 512 < len(document[0]) <= 2048]
    # A long document leaves room that short ones fill, and far context must not mean tools only.
    extra = len(long)
    long += short[:extra]
    rng.shuffle(long)
    for length, group in ((256, short[extra:]), (512, long)):
        rows = list(pack(group, length))
        count = _ROWS_PER_BATCH[length]
        found += [rows[i : i + count] for i in range(0, len(rows), count)]
    rng.shuffle(found)
    yield from found


def lessons(documents: Sequence[Encoded], recipe: Recipe) -> Iterator[list[list[Encoded]]]:
    """The batches of all steps: the drill, then the documents over and over."""
    rng = random.Random(recipe.seed)
    epoch: Iterator[list[list[Encoded]]] = iter(())
    for step in range(recipe.steps):
        if step < recipe.drill_steps or step % _DRILL_EVERY == 0:
            length = rng.choice((64, 128, 256))
            yield [[drill(rng, length, VOCABULARY_SIZE)] for _ in range(512 // length)]
            continue
        batch = next(epoch, None)
        if batch is None:
            epoch = batches(documents, rng)
            batch = next(epoch)
        yield batch


def tensors(
    batch: Sequence[Sequence[Encoded]], pad: int, prompt_weight: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and the weight of each, padded to the longest row."""
    longest = max(sum(len(ids) for ids, _ in row) for row in batch)
    ids = torch.full((len(batch), longest), pad)
    weights = torch.zeros(len(batch), longest)
    for i, row in enumerate(batch):
        tokens = [token for document, _ in row for token in document]
        answer = [mark for _, marks in row for mark in marks]
        ids[i, : len(tokens)] = torch.tensor(tokens)
        weights[i, : len(tokens)] = torch.tensor(
            [1.0 if mark else prompt_weight for mark in answer]
        )
    return ids, weights


def rate(step: int, warm_up_steps: int, steps: int) -> float:
    """Share of the learning rate: a linear warm-up, then half a cosine down to 0."""
    if step < warm_up_steps:
        return (step + 1) / warm_up_steps
    done = (step - warm_up_steps) / (steps - warm_up_steps)
    return 0.5 * (1 + math.cos(math.pi * done))


def _optimizer(model: LlamaForCausalLM, recipe: Recipe) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    gains = [p for p in model.parameters() if p.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": gains, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.98), fused=True)


def train(
    model: LlamaForCausalLM, documents: Sequence[Encoded], pad: int, recipe: Recipe
) -> LlamaForCausalLM:
    """Run all steps of the recipe; the loss is logged every 200."""
    optimizer = _optimizer(model, recipe)
    model.train()
    started, running = time.monotonic(), 0.0
    for step, batch in enumerate(lessons(documents, recipe)):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * rate(step, recipe.warm_up_steps, recipe.steps)
        ids, weights = tensors(batch, pad, recipe.prompt_weight)
        loss = _loss(model, ids, weights)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        running += loss.item()
        if (step + 1) % 200 == 0:
            seconds = time.monotonic() - started
            log.info("step %d  loss %.4f  %.0f s", step + 1, running / 200, seconds)
            running = 0.0
    return model.eval()


def _loss(model: LlamaForCausalLM, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    hidden = model.model(input_ids=ids[:, :-1]).last_hidden_state
    wanted = weights[:, 1:] > 0
    # Only what counts passes the output matrix, a third of the model's work.
    logits = model.lm_head(hidden[wanted])
    each = torch.nn.functional.cross_entropy(logits, ids[:, 1:][wanted], reduction="none")
    weight = weights[:, 1:][wanted]
    return (each * weight).sum() / weight.sum()
