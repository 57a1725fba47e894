"""Parses a Dockerfile for the tests: its stages and their instructions."""

from pathlib import Path
from typing import NamedTuple


class Instruction(NamedTuple):
    """One instruction with its continuation lines joined."""

    keyword: str
    text: str


def instructions(path: Path) -> list[Instruction]:
    """Every instruction in order, without comments."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    words = (line.split(maxsplit=1) for line in joined.splitlines() if line.strip())
    return [Instruction(keyword, " ".join(text.split())) for keyword, text in words]


def stages(path: Path) -> dict[str, list[Instruction]]:
    """Stage name -> its instructions, beginning with FROM."""
    found: dict[str, list[Instruction]] = {}
    current: list[Instruction] = []
    for instruction in instructions(path):
        if instruction.keyword == "FROM":
            current = found[instruction.text.rpartition(" AS ")[2]] = []
        current.append(instruction)
    return found
