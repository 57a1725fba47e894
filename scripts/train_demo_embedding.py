"""Makes model_repository/demo-embedding: its tokenizer, its weights, its score.

`OMP_NUM_THREADS=1 python -m scripts.train_demo_embedding` takes a few minutes. The same seed and
number of threads on the same kind of machine give the same model.
"""

import argparse
import logging
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported

from scripts.demo_embedding.model import save
from scripts.demo_embedding.train import Recipe, score, train

_WEIGHTS = Path(__file__).parents[1] / "model_repository" / "demo-embedding" / "1" / "weights"
log = logging.getLogger("train_demo_embedding")


def main() -> None:
    """Train, save, score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=_WEIGHTS, help="folder of the weights")
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    model, tokenizer = train(Recipe(steps=arguments.steps))
    save(model, tokenizer, arguments.output)
    log.info("%d parameters; %s", model.num_parameters(), score(model, tokenizer))


if __name__ == "__main__":
    main()
