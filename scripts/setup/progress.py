"""Shows progress of long commands: a changing line on a terminal, occasional lines in a log."""

import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

LOG_INTERVAL_S = 15.0
TERMINAL_INTERVAL_S = 0.5
KEPT_LINES = 40


class CommandFailed(Exception):
    """A command of the set-up ended with an error; its last lines are the message."""


class Progress:
    """Numbers the steps of one set-up and runs their commands."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.number = 0
        self.title = ""
        self.started = time.monotonic()
        self.terminal = sys.stdout.isatty()
        self.interval_s = TERMINAL_INTERVAL_S if self.terminal else LOG_INTERVAL_S

    def begin(self, title: str) -> None:
        self.number += 1
        self.title = title
        self.say("...")

    def say(self, text: str) -> None:
        elapsed = time.monotonic() - self.started
        line = f"[{self.number}/{self.steps}] {elapsed:4.0f} s  {self.title} {text}"
        sys.stdout.write(f"\r\033[K{line}" if self.terminal else f"{line}\n")
        sys.stdout.flush()

    def end(self, text: str = "done") -> None:
        self.say(text)
        if self.terminal:
            sys.stdout.write("\n")

    def run(
        self,
        command: Sequence[str | Path],
        state: Callable[[], str] = lambda: "",
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Run a command; until it ends, repeat the text of `state` or its last line."""
        lines: deque[str] = deque(maxlen=KEPT_LINES)
        with start(command, env, cwd) as process:
            reader = threading.Thread(target=keep_lines, args=(process, lines), daemon=True)
            reader.start()
            while reader.is_alive():
                reader.join(self.interval_s)
                if reader.is_alive():
                    self.say(state() or (lines[-1][:70] if lines else "..."))
        if process.returncode:
            raise CommandFailed("\n".join([*lines, f"failed: {' '.join(map(str, command))}"]))


def start(
    command: Sequence[str | Path], env: dict[str, str] | None, cwd: Path | None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(part) for part in command],
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def keep_lines(process: subprocess.Popen[str], lines: deque[str]) -> None:
    assert process.stdout is not None  # noqa: S101 - opened with PIPE above
    for line in process.stdout:
        if line.strip():
            lines.append(line.rstrip())
