"""Makes model_repository/demo-vision from the text demo's weights: its processor, its weights, its
score. Downloads nothing.

`OMP_NUM_THREADS=1 python -m scripts.train_demo_vision` takes about half an hour of CPU time. The
same seed and number of threads on the same kind of machine give the same model.
"""

import logging
import os
import time
from pathlib import Path

# Read when torch and transformers are loaded; see scripts/train_demo_model.py
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from scripts.demo_model.command_line import parse_recipe
from scripts.demo_model.evaluate import score as text_score
from scripts.demo_model.exchange import Split
from scripts.demo_model.prompts import GENERATED, read_prompts
from scripts.demo_vision.evaluate import score
from scripts.demo_vision.model import new_model, new_processor, new_tokenizer
from scripts.demo_vision.questions import scored_questions
from scripts.demo_vision.train import Recipe, train

_WEIGHTS = Path(__file__).parents[1] / "model_repository" / "demo-vision" / "1" / "weights"
log = logging.getLogger("train_demo_vision")


def main() -> None:
    """Train, save, score."""
    recipe, arguments = parse_recipe(Recipe, __doc__, _WEIGHTS, of_each=100)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(recipe.seed)
    tokenizer = new_tokenizer()
    processor = new_processor(tokenizer)
    model = train(new_model(tokenizer), tokenizer, recipe)
    log.info("%d parameters, %.0f s CPU", model.num_parameters(), time.process_time())
    model.save_pretrained(arguments.output)
    processor.save_pretrained(arguments.output)
    splits: tuple[Split, ...] = ("train", "held_out")
    for split in splits:
        questions = scored_questions(recipe.seed + 1, split, arguments.of_each)
        result = score(model, processor, questions, seed=recipe.seed + 1)
        for exchange, text in result.wrong:
            log.info("wrong: %s -> %r", exchange.messages[-1]["content"], text)
        log.info("pictures, %s: %s", split, result)
    for name in GENERATED:
        log.info("text, %s: %s", name, text_score(model, tokenizer, read_prompts(name)))


if __name__ == "__main__":
    main()
