"""Time from the start of a server's process to the first token: the gateway beside `vllm serve`.

`python -m benchmarks.starts [--store]`. The servers start one after the other, alternating, with
the same weights and engine arguments. The files are in the page cache. The gateway also unloads the
model and answers a request that loads it again.
"""

import argparse
import contextlib
import http.client
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks import machine, results
from benchmarks.peers import model
from benchmarks.peers.servers import GATEWAY, MODEL, OWN, VLLM, PeerServer, Setup
from benchmarks.server_process import ServerFailed
from benchmarks.summary import Summary

_ROUNDS = 3
_START_S = 300.0
_POLL_S = 0.05

# 257 million weights of FP32
_ONE_GB = {
    "num_hidden_layers": 20,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 64,
}
SHAPES: Mapping[str, Mapping[str, int]] = {"0.6 million weights": model.SMALL, "1 GB": _ONE_GB}

_ON_DEMAND = (
    "--model-control-mode=explicit",
    f"--load-model={MODEL}",
    "--load-on-demand",
    "--enable-model-management",
)


@dataclass(frozen=True, slots=True)
class Time:
    """One figure."""

    server: str
    what: str
    seconds: float


def first_token_s(server: PeerServer, begun_s: float) -> float:
    """Seconds from `begun_s` to the answer of one token; asks until the server gives it."""
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if _ask(server.port) == 200:
                return time.perf_counter() - begun_s
        if time.perf_counter() - begun_s > _START_S:
            raise ServerFailed(f"{server.name} gave no token in {_START_S:.0f} s:\n{server.log()}")
        time.sleep(_POLL_S)


def _ask(port: int) -> int:
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 1}
    return _post(port, "/v1/completions", body)


def _post(port: int, path: str, body: Mapping[str, object]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_START_S)
    with contextlib.closing(connection):
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        response.read()
        return response.status


def times(weights: Path, folder: Path, names: tuple[str, ...] = (GATEWAY, VLLM)) -> Iterator[Time]:
    """One start of each server, and a load of the gateway's model by a request."""
    for name in names:
        options = _ON_DEMAND if name == GATEWAY else ()
        setup = Setup(folder, weights, OWN, {"max_model_len": 256}, gateway=options)
        begun_s = time.perf_counter()
        with PeerServer(name, setup, waits=False) as server:
            yield Time(name, "start", first_token_s(server, begun_s))
            if name == GATEWAY:
                if (status := _post(server.port, f"/v1/models/{MODEL}/unload", {})) != 200:
                    raise ServerFailed(f"the unload was answered with {status}:\n{server.log()}")
                begun_s = time.perf_counter()
                yield Time(name, "request after an unload", first_token_s(server, begun_s))


def rounds(count: int) -> Iterator[tuple[str, Time]]:
    """The figures with the name of their model."""
    with tempfile.TemporaryDirectory(prefix="starts-") as temporary:
        folder = Path(temporary)
        for shape, changed in SHAPES.items():
            weights = model.write_llama(folder / "weights" / shape, model.SMALL | dict(changed))
            for _ in range(count):
                for each in times(weights, folder):
                    print(f"  {shape}: {each}", file=sys.stderr, flush=True)
                    yield shape, each


def table(found: Mapping[tuple[str, str, str], Summary]) -> str:
    """Markdown, under what it holds for."""
    about = ", ".join(f"{name} {value}" for name, value in machine.describe().items())
    head = [
        "# Time to the first token of a new server",
        "",
        f"`python -m benchmarks.starts --store`, commit {machine.commit()}, {about}. Seconds, "
        "median and range.",
        "",
        "| model | server | from | s | range |",
        "|---|---|---|--:|--:|",
    ]
    rows = [
        f"| {shape} | {server} | {what} | {each.median:.1f} | {each.low:.1f} to {each.high:.1f} |"
        for (shape, server, what), each in found.items()
    ]
    return "\n".join([*head, *rows]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.starts", description=__doc__)
    parser.add_argument("--store", action="store_true", help="write JSON and table to results")
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    arguments = parser.parse_args()
    each: dict[tuple[str, str, str], list[float]] = {}
    for shape, one in rounds(arguments.rounds):
        each.setdefault((shape, one.server, one.what), []).append(one.seconds)
    found = {key: Summary.of(values) for key, values in each.items()}
    text = table(found)
    print(text)
    if arguments.store:
        figures = {", ".join(key): each[key] for key in each}
        results.store(results.FOLDER, "starts", figures, text)


if __name__ == "__main__":
    main()
