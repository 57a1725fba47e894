"""Images per second by media workers: `python -m benchmarks.media_workers`.

No engine runs, and nothing else uses the cores: through a gateway on two cores, the engine and the
gateway would need a part of the second worker's core.
"""

import json
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from benchmarks import picture
from openai_frontend.engines.engine import ModelSpec
from openai_frontend.engines.media import base64_digest
from openai_frontend.engines.vllm import arguments
from openai_frontend.engines.vllm.media.images import new_pool
from openai_frontend.engines.vllm.media.worker import ImageRequest
from openai_frontend.media.pool import WorkerPool

_MODEL = Path(__file__).parents[1] / "model_repository" / "demo-vision"
_SIDE = 1024  # pixels
_WORKERS = (1, 2)
_ROUNDS = 5  # with each number of workers in turn
_IMAGES = 200  # in a round, each of them new


def main() -> None:
    given = json.loads((_MODEL / "1" / "model.json").read_text())
    model = ModelSpec(name="vision", version=1, folder=_MODEL, parameters={}, arguments=given)
    arguments.set_environment()
    config = arguments.engine_arguments(model).create_engine_config().model_config
    rates: dict[int, list[float]] = {workers: [] for workers in _WORKERS}
    numbers = iter(range(10**6))
    for _ in range(_ROUNDS):
        for workers in _WORKERS:
            with closing(new_pool("image", config, processes=workers)) as pool:
                pool.start()
                _rate(pool, numbers, 4 * workers)  # starts the workers
                rates[workers].append(_rate(pool, numbers, _IMAGES))
    one, two = (statistics.median(rates[workers]) for workers in _WORKERS)
    for workers, found in rates.items():
        median = statistics.median(found)
        print(f"{workers}: {median:.0f} images/s ({min(found):.0f} to {max(found):.0f})")
    print(f"two workers: {two / one:.2f} times one")


def _rate(pool: WorkerPool, numbers: Iterator[int], count: int) -> float:
    """Images per second."""
    texts = [picture.data_url(_SIDE, next(numbers)).partition(",")[2] for _ in range(count)]
    tasks = [(_request(text), [text.encode()]) for text in texts]
    began_s = time.perf_counter()
    for done in [pool.submit(*task) for task in tasks]:
        done.result(timeout=300)
    return count / (time.perf_counter() - began_s)


def _request(text: str) -> ImageRequest:
    digest = base64_digest(text)
    return ImageRequest(digest, digest, None, _SIDE, _SIDE, "jpeg", low_detail=False)


if __name__ == "__main__":
    main()
