"""The prompts that score the model, as a file: `python -m scripts.demo_model.prompts` writes it.

The file has three lists. "in_distribution" comes from the generators as training does, "held_out"
has phrasings and values that training never has, and "stable" is written by hand: prompts whose
greedy answer tests may rely on, for no token of it is a close decision.
"""

import json
from pathlib import Path
from typing import Any

from .corpus import scored_exchanges
from .exchange import Exchange, Split

PROMPTS = Path(__file__).parents[2] / "tests" / "data" / "demo_prompts.json"
GENERATED: dict[str, Split] = {"in_distribution": "train", "held_out": "held_out"}


def read_prompts(name: str) -> list[Exchange]:
    """One of the lists of the file."""
    return [_from_json(found) for found in json.loads(PROMPTS.read_text("utf-8"))[name]]


def generate(split: Split) -> list[dict[str, Any]]:
    """A list of the file, made anew."""
    return [_to_json(exchange) for exchange in scored_exchanges(1, split)]


def main() -> None:
    """Write the generated lists; the stable one stays as it is."""
    stable = json.loads(PROMPTS.read_text("utf-8"))["stable"] if PROMPTS.exists() else []
    lists = {name: generate(split) for name, split in GENERATED.items()}
    PROMPTS.write_text(_dump({"stable": stable, **lists}), "utf-8")


def _dump(lists: dict[str, list[dict[str, Any]]]) -> str:
    """One prompt a line, so that a difference can be read."""
    texts = []
    for name, prompts in lists.items():
        lines = ",\n".join(f"    {json.dumps(prompt, ensure_ascii=False)}" for prompt in prompts)
        texts.append(f"  {json.dumps(name)}: [\n{lines}\n  ]")
    return "{\n" + ",\n".join(texts) + "\n}\n"


def _to_json(exchange: Exchange) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": exchange.kind, "messages": list(exchange.messages)}
    if exchange.tools:
        found["tools"] = list(exchange.tools)
    return {**found, "answers": list(exchange.answers)}


def _from_json(found: dict[str, Any]) -> Exchange:
    return Exchange(
        found["kind"],
        tuple(found["messages"]),
        tuple(found["answers"]),
        tuple(found.get("tools", ())),
    )


if __name__ == "__main__":
    main()
