"""Compares the gateway with vLLM's own servers: same engine, model and flags."""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks import aiperf, results
from benchmarks.client_process import ClientFailed
from benchmarks.peers import model, report
from benchmarks.peers.document import cores, document
from benchmarks.peers.plan import Plan
from benchmarks.peers.rounds import Result, Rounds
from benchmarks.peers.servers import (
    FLAGS,
    GATEWAY,
    GENERATE,
    LEAN,
    LONG,
    POOLING,
    SEEING,
    SERVERS,
    TOOLS,
    VLLM_RUST,
    PeerServer,
    Setup,
)
from benchmarks.scenario import Scenario
from benchmarks.server_process import ServerFailed

# Exit codes: 0 is a run, 1 one with a measurement that counts for nothing, 2 one that did not work
DISCARDED = 1
FAILED = 2

_QUICK = Plan(rounds=1, streams=(32, 64), measured_s=4.0, open_loop=False)
# What is measured
_CHATS, _EMBEDDINGS, _KINDS, _IMAGES = "chats", "embeddings", "kinds", "images"
_APIS = "apis"
_BESIDE = "beside-images"
_IMAGE_CHATS = 64  # beside text streams
_BATCHES = (1, 32)
_ENCODINGS = ("float", "base64")


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code."""
    given = parser().parse_args(arguments)
    plan = _plan(given)
    flags = FLAGS if given.flags == "both" else (given.flags,)
    found: list[Result] = []
    try:
        for each in flags:
            found += _measured(each, plan, given)  # keeps what came before an error
    except (ClientFailed, ServerFailed, KeyboardInterrupt) as error:
        if found:
            print(report.markdown(document(found, plan)))
        sys.stderr.write(f"benchmarks.peers: not finished: {error or 'interrupted'}\n")
        return FAILED
    run = document(found, plan)
    table = report.markdown(run)
    print(table)
    if given.json is not None:
        results.write_json(run, given.json)
    if given.store:
        results.store(results.FOLDER, f"peers_{given.what}".removesuffix("_chats"), run, table)
    return DISCARDED if any(each.failure for each in found) else 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, 32 and 64 streams")
    parser.add_argument("--rounds", type=_positive, help="number of rounds (default: 3)")
    parser.add_argument(
        "--streams", type=_numbers, metavar="1,8,...", help="concurrent streams of each closed loop"
    )
    parser.add_argument("--seconds", type=float, help="measured seconds of each load")
    parser.add_argument(
        "--rate",
        type=float,
        help="requests per second of the open loop (default: half of the slowest server's)",
    )
    parser.add_argument("--no-open-loop", action="store_true", help="measure closed loops only")
    parser.add_argument("--flags", choices=(*FLAGS, "both"), default=LEAN, help="vLLM's settings")
    parser.add_argument(
        "--servers",
        type=_servers,
        default=SERVERS,
        metavar=",".join(SERVERS),
        help="servers to measure",
    )
    what = parser.add_mutually_exclusive_group()
    for name, text in (
        (_EMBEDDINGS, "an embedding model instead of streamed chats"),
        (_KINDS, "other requests: tools, schemas, log probabilities, whole answers, prompts"),
        (_APIS, "the same questions by chat, Responses and Messages"),
        (_IMAGES, "questions about images, new and known"),
        (_BESIDE, "the gateway's text streams and /health/live, alone and beside 64 image chats"),
    ):
        what.add_argument(
            f"--{name}", dest="what", action="store_const", const=name, help=f"measure {text}"
        )
    parser.set_defaults(what=_CHATS)
    parser.add_argument(
        "--image-processes", type=_positive, help="of the gateway's engine (default: its own)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    parser.add_argument(
        "--store", action="store_true", help="write JSON and table to benchmarks/results"
    )
    parser.add_argument(
        "--aiperf",
        action=argparse.BooleanOptionalAction,
        help="also drive each closed loop once with aiperf (default: with --store)",
    )
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(_positive, text.split(",")))


def _servers(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= set(SERVERS):
        raise argparse.ArgumentTypeError(f"{text}: of {', '.join(SERVERS)}")
    return names


def _plan(given: argparse.Namespace) -> Plan:
    plan = _QUICK if given.quick else Plan()
    asked = {
        "rounds": given.rounds,
        "streams": given.streams,
        "measured_s": given.seconds,
        "rate_per_s": given.rate,
        "open_loop": False if given.no_open_loop else None,
    }
    return replace(plan, **{name: value for name, value in asked.items() if value is not None})


def _measured(flags: str, plan: Plan, given: argparse.Namespace) -> Iterator[Result]:
    # vllm-rs answers all but chats and completions with 404, and knows no processor of the vision
    # model
    embeddings, images = given.what == _EMBEDDINGS, given.what in (_IMAGES, _BESIDE)
    without_rust = embeddings or images or given.what == _APIS
    names = [name for name in given.servers if not (without_rust and name == VLLM_RUST)]
    if given.what == _BESIDE:
        names = [GATEWAY]  # the others have no /health/live
    with tempfile.TemporaryDirectory(prefix="peers-") as folder, ExitStack() as stack:
        path = Path(folder)
        if embeddings:
            setup = Setup(path, model.minilm(), flags, POOLING)
        elif images:
            setup = Setup(
                path,
                model.vision(),
                flags,
                SEEING,
                gateway=["--max-images=32"],
                image_processes=given.image_processes,
            )
        elif given.what in (_KINDS, _APIS):
            weights = model.write_llama(path / "weights", model.SMALL | model.LONG)
            setup = Setup(path, weights, flags, LONG, TOOLS)
        else:
            setup = Setup(path, model.write_llama(path / "weights"), flags, GENERATE)
        servers = []
        for name in names:
            _say(f"starting {name}, {flags} flags")
            servers.append(stack.enter_context(PeerServer(name, setup)))
        rounds = Rounds(flags, servers, cores(), _say)
        if given.what == _CHATS:
            yield from _chats(rounds, plan)
            scenarios = [plan.closed(streams) for streams in plan.streams]
        else:
            scenarios = _scenarios(given.what, plan)
            if images:
                rounds.warm_up(next(plan.images()))
            yield from _each(rounds, plan, scenarios)
        if given.what in (_CHATS, _EMBEDDINGS) and aiperf.is_requested(given):
            yield from _witnesses(rounds, scenarios, setup.model)


def _chats(rounds: Rounds, plan: Plan) -> Iterator[Result]:
    rate_per_s = plan.rate_per_s
    for number in range(1, plan.rounds + 1):
        for streams in plan.streams:
            measured = rounds.run(plan.closed(streams), number)
            yield from measured
        if not plan.open_loop:
            continue
        if rate_per_s is None:
            rate_per_s = plan.rate(min(each.figures["tokens_per_s"] for each in measured))
        yield from rounds.run(plan.opened(rate_per_s), number)


def _each(rounds: Rounds, plan: Plan, scenarios: Sequence[Scenario]) -> Iterator[Result]:
    for number in range(1, plan.rounds + 1):
        for scenario in scenarios:
            yield from rounds.run(scenario, number)


def _scenarios(what: str, plan: Plan) -> list[Scenario]:
    if what == _EMBEDDINGS:
        return [plan.embeddings(batch, encoding) for batch in _BATCHES for encoding in _ENCODINGS]
    if what == _BESIDE:
        return [plan.beside_images(chats) for chats in (0, _IMAGE_CHATS)]
    if what == _APIS:
        return [*plan.apis()]
    return [*(plan.images() if what == _IMAGES else plan.kinds())]


def _witnesses(rounds: Rounds, scenarios: Sequence[Scenario], tokenizer: Path) -> Iterator[Result]:
    reason = aiperf.missing()
    if reason is not None:
        _say(f"without aiperf: {reason}")
        return
    for scenario in scenarios:
        yield from rounds.witness(scenario, tokenizer)


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)
