"""Makes model_repository/demo: its tokenizer, its weights, its score. Needs torch and transformers.

`OMP_NUM_THREADS=1 python -m scripts.train_demo_model` takes about a quarter of an hour: with such
small matrices a second thread gains little. The same seed and number of threads on the same kind of
machine give the same model.
"""

import logging
import os
import time
from pathlib import Path

# Read when torch is loaded, so they come first. Threads that spin while they wait for the next
# small matrix take the processor from those that compute.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from scripts.demo_model import corpus
from scripts.demo_model.command_line import parse_recipe
from scripts.demo_model.evaluate import score
from scripts.demo_model.prompts import GENERATED, read_prompts
from scripts.demo_model.tokenizer import render, renderer, train_tokenizer
from scripts.demo_model.train import Recipe, encode, new_model, train

_WEIGHTS = Path(__file__).parents[1] / "model_repository" / "demo" / "1" / "weights"
log = logging.getLogger("train_demo_model")


def main() -> None:
    """Train, save, score."""
    recipe, arguments = parse_recipe(Recipe, __doc__, _WEIGHTS)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(recipe.seed)
    started = time.monotonic()

    stand_in = renderer()
    texts = [render(stand_in, d) for d in corpus.documents(recipe.seed, recipe.documents)]
    tokenizer = train_tokenizer(texts[:10_000])
    documents = encode(tokenizer, texts)
    tokens = sum(len(ids) for ids, _ in documents)
    log.info("%d documents, %d tokens, %.0f s", len(texts), tokens, time.monotonic() - started)

    model = train(new_model(tokenizer), documents, tokenizer.pad_token_id, recipe)
    log.info("%d parameters, %.0f s", model.num_parameters(), time.monotonic() - started)
    model.save_pretrained(arguments.output)
    tokenizer.save_pretrained(arguments.output)
    for name in GENERATED:
        result = score(model, tokenizer, read_prompts(name))
        for exchange, text in result.wrong:
            log.info("wrong: %s -> %r", exchange.messages[-1]["content"], text)
        log.info("%s: %s", name, result)


if __name__ == "__main__":
    main()
