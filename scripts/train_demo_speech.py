"""Makes model_repository/demo-speech, its example and the recordings of tests/data/speech: its
processor, its weights, its score. Downloads nothing; eSpeak NG speaks the digits.

`make demo-speech` takes about 23 minutes of CPU time. The same seed and number of threads on the
same kind of machine give the same model.
"""

import json
import logging
import os
import random
import time
import wave
from pathlib import Path

# Read when torch and transformers are loaded; see scripts/train_demo_model.py
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from scripts.demo_model.command_line import parse_recipe
from scripts.demo_model.exchange import Split
from scripts.demo_speech.espeak import SAMPLE_RATE, Speaker
from scripts.demo_speech.evaluate import score
from scripts.demo_speech.model import new_model, new_processor
from scripts.demo_speech.train import Recipe, train
from scripts.demo_speech.utterances import Recordings

_ROOT = Path(__file__).parents[1]
_WEIGHTS = _ROOT / "model_repository" / "demo-speech" / "1" / "weights"
_TEST_DATA = _ROOT / "tests" / "data" / "speech"
# Name -> language, number of segments and file
_SAMPLES = {
    "english": ("en", 1, _WEIGHTS.parents[1] / "example.wav"),
    "german": ("de", 1, _TEST_DATA / "german.wav"),
    "pause": ("en", 2, _TEST_DATA / "pause.wav"),
}
log = logging.getLogger("train_demo_speech")


def main() -> None:
    """Train, save, score."""
    recipe, arguments = parse_recipe(Recipe, __doc__, _WEIGHTS, count=300)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(recipe.seed)
    speaker = Speaker()
    heard = Recordings(speaker.say, "train")
    _write_samples(heard, recipe.seed + 2)
    processor = new_processor()
    model = train(new_model(processor.tokenizer), processor, heard, recipe)
    log.info("%d parameters, %.0f s CPU", model.num_parameters(), time.process_time())
    model.save_pretrained(arguments.output)
    processor.save_pretrained(arguments.output)
    splits: tuple[Split, ...] = ("train", "held_out")
    for split in splits:
        recordings = heard if split == "train" else Recordings(speaker.say, split)
        result = score(model, processor, recordings, seed=recipe.seed + 1, count=arguments.count)
        for line in result.wrong:
            log.info("wrong: %s", line)
        log.info("voices, %s: %s", split, result)


def _write_samples(recordings: Recordings, seed: int) -> None:
    """For the tests, which have no eSpeak NG: a few utterances, and what is said in them."""
    rng = random.Random(seed)
    said = {}
    for name, (language, segments, path) in _SAMPLES.items():
        while True:
            spoken = recordings.utterance(rng)
            if spoken.language == language and len(spoken.segments) == segments:
                break
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, SAMPLE_RATE, 0, "NONE", ""))
            file.writeframes((spoken.samples * 32_767).astype("<i2").tobytes())
        said[name] = {
            "language": language,
            "digits": spoken.words,
            "times": [[round(each, 2) for each in times] for times in spoken.times],
        }
    (_TEST_DATA / "said.json").write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main()
