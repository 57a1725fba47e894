"""`make soak`: loads a gateway for a time, prints a report, and fails on errors or leaks."""

import argparse
import asyncio
import random
import shutil
import sys
from pathlib import Path

from scripts.soak.scenarios import ENGINE_ROWS, MEDIA, ROWS
from scripts.soak.soak import Plan, soak

NAMES = [row.name for row in (*ROWS, *ENGINE_ROWS)]


def main() -> int:
    options = _options()
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    minutes = options.hours * 60 if options.hours else options.minutes
    print(f"seed {options.seed}: ARGS=--seed={options.seed} plays the same again", flush=True)
    plan = Plan(
        seconds=60 * minutes,
        seed=options.seed,
        clients=options.clients,
        pause_s=options.pause_s,
        engine=options.engine or options.media,
        kill=options.kill,
        scenarios=options.scenario or [play.__name__ for play in MEDIA if options.media],
        leak_bytes=options.leak_bytes,
        noise_mb=options.noise_mb,
    )
    found = asyncio.run(soak(options.out.resolve(), plan))
    (options.out / "report.json").write_bytes(found.json())
    (options.out / "report.txt").write_text(found.text() + "\n")
    (options.out / "samples.csv").write_text(found.samples_csv())
    print(found.text())
    print(f"{options.out}/report.json, {options.out}/samples.csv, {options.out}/log")
    return 1 if found.failures else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--hours", type=float, help="in place of minutes")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--pause-s", type=float, default=0.05, help="between a client's requests")
    parser.add_argument("--scenario", action="append", choices=NAMES, help="only these")
    parser.add_argument("--engine", action="store_true", help="with the demo models, in vLLM")
    parser.add_argument("--media", action="store_true", help="the same, only images and audio")
    parser.add_argument(
        "--kill", action="store_true", help="kill and stop processes of models at random"
    )
    parser.add_argument("--leak-bytes", type=int, default=0, help="that each request leaves behind")
    parser.add_argument(
        "--noise-mb", type=float, default=3, help="growth that is no leak; a short run needs more"
    )
    parser.add_argument("--out", type=Path, default=Path("build/soak"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
