"""In-process models: with an engine, echoing their inputs, sending parts, adding up sequences."""

import struct
from pathlib import Path
from typing import Any

from openai_frontend.engines import loader
from openai_frontend.engines.loader import interrupt_loads
from openai_frontend.model_facts import ModelFacts
from openai_frontend.triton import _core
from tests.core.triton import echo_runtime
from tests.core.triton.echo_runtime import EchoHost

__all__ = ["interrupt_loads", "load"]


PARTS = "OUT", "AGAIN"


class PartsHost(EchoHost):
    """Sends each element in a response of its own, in two outputs."""

    facts = ModelFacts(max_model_len=None)

    def __init__(self, *, empty_final: bool) -> None:
        """`empty_final`: end with a response without outputs."""
        super().__init__()
        self._empty_final = empty_final

    def start(self, execution: _core.Execution) -> None:
        tensor = execution.inputs()["IN"]
        data = bytes(memoryview(tensor))  # type: ignore[arg-type]  # it has the buffer protocol
        while data:
            size = 4 + struct.unpack_from("<I", data)[0]
            part, data = bytes.fromhex(data[4:size].decode()), data[size:]
            element = struct.pack("<I", len(part)) + part
            execution.send(
                [(name, "BYTES", (1,), element) for name in PARTS],
                final=not data and not self._empty_final,
            )
        if self._empty_final:
            execution.send([], final=True)

    def unsent(self, begun: bool) -> int:
        return 0


class ClassesHost(EchoHost):
    """Returns the input under the name of the output that has labels."""

    def start(self, execution: _core.Execution) -> None:
        tensor = execution.inputs()["IN"]
        data = memoryview(tensor)  # type: ignore[arg-type]  # it has the buffer protocol
        execution.send([("OUT", tensor.dtype, tensor.shape, data)], final=True)


class SumsHost(EchoHost):
    """Adds up the numbers of each sequence. The core says where sequences start and end."""

    facts = ModelFacts(max_model_len=None)

    def __init__(self) -> None:
        self._sums: dict[Any, int] = {}

    def start(self, execution: _core.Execution) -> None:
        found = {name: tensor.item() for name, tensor in execution.inputs().items()}
        sequence = found["CORRID"]
        if found["READY"]:  # 0: only a place in the batch, without a request of a client
            before = 0 if found["START"] else self._sums.get(sequence, -1000)
            self._sums[sequence] = before + found["IN"]
        total = self._sums.pop(sequence, 0) if found["END"] else self._sums.get(sequence, 0)
        outputs = [("OUT", "INT32", (1, 1), struct.pack("<i", total))]
        execution.send(outputs if found["READY"] else [], final=True)


def load(name: str, version: int, folder: Path, config: dict[str, Any], loop: Any) -> Any:
    """An engine if the config names one, else an echo model."""
    if name in ("parts", "ended"):
        outputs = [{"name": each, "data_type": "TYPE_STRING", "dims": [1]} for each in PARTS]
        return PartsHost(empty_final=name == "ended"), {**config, "output": outputs}
    if name.startswith("labelled"):
        return ClassesHost(), config
    if name.startswith("sums"):
        output = {"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]}
        return SumsHost(), {**config, "output": [output]}
    module = loader if "engine" in config.get("parameters", {}) else echo_runtime
    return module.load(name, version, folder, config, loop)
