"""The gateway under cProfile, which counts only between two signals. Started by `hot_spots`."""

import cProfile
import os
import signal
import sys
from types import FrameType

from openai_frontend.cli import main

START = signal.SIGUSR1
STOP = signal.SIGUSR2


def _run(output: str, arguments: list[str]) -> int:
    profile = cProfile.Profile()

    def start(number: int, frame: FrameType | None) -> None:
        profile.enable()

    def stop(number: int, frame: FrameType | None) -> None:
        profile.disable()
        profile.dump_stats(output + ".part")
        profile.clear()
        os.rename(output + ".part", output)  # whoever waits for the file sees all of it

    signal.signal(START, start)
    signal.signal(STOP, stop)
    return main(arguments)


if __name__ == "__main__":
    sys.exit(_run(sys.argv[1], sys.argv[2:]))
