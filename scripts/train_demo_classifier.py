"""Makes model_repository/demo-classifier: its weights, its score.

`OMP_NUM_THREADS=1 python -m scripts.train_demo_classifier` takes less than a minute. The same seed
on the same kind of machine gives the same weights.
"""

import argparse
import logging
from pathlib import Path

from scripts.demo_classifier.train import MODEL, Recipe, score, train

log = logging.getLogger("train_demo_classifier")


def main() -> None:
    """Train, save, score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=MODEL / "1", help="folder of the weights")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    train(Recipe()).save(arguments.output)
    log.info("%s", score(arguments.output))


if __name__ == "__main__":
    main()
