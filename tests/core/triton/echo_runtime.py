"""A runtime whose models return their inputs, to send any tensor in and out."""

import asyncio
import json
import struct
from pathlib import Path
from typing import Any

from openai_frontend.model_facts import ModelFacts
from openai_frontend.triton import _core, error_codes

SAID = [
    {"name": name, "data_type": "TYPE_STRING", "dims": [1]} for name in ("parameters", "request_id")
]


def load(
    name: str, version: int, folder: Path, config: dict[str, Any], loop: asyncio.AbstractEventLoop
) -> tuple["EchoHost", dict[str, Any]]:
    """Declares an output `<input>_echo` for each input of the config."""
    outputs = [
        {"name": f"{tensor['name']}_echo", "data_type": tensor["data_type"], "dims": tensor["dims"]}
        for tensor in config["input"]
    ]
    return EchoHost(), {**config, "output": outputs + SAID}


class EchoHost:
    """Returns inputs, parameters and id in one response."""

    facts = ModelFacts(max_model_len=None)

    def start(self, execution: _core.Execution) -> None:
        said = {
            "parameters": json.dumps(execution.parameters()),
            "request_id": execution.request_id,
        }
        echoes = [
            (f"{name}_echo", tensor.dtype, tensor.shape, memoryview(tensor))  # type: ignore[arg-type]  # it has the buffer protocol
            for name, tensor in execution.inputs().items()
        ]
        texts = [
            (name, "BYTES", (1,), struct.pack("<I", len(value)) + value.encode())
            for name, value in said.items()
        ]
        execution.send([*echoes, *texts], final=True)

    def cancel(self, execution: _core.Execution) -> None:
        execution.fail(error_codes.CANCELLED, "the request was cancelled")

    def unload(self) -> None:
        pass

    def failure(self) -> None:
        return None
