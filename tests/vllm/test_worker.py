"""The CPU worker of the engine's process."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.engine


@pytest.fixture
def stance_restored() -> Iterator[None]:
    import torch

    yield
    torch.compiler.set_stance("default")


@pytest.mark.usefixtures("stance_restored")
@pytest.mark.parametrize("enforce_eager", [True, False])
def test_enforce_eager_compiles_nothing(monkeypatch, enforce_eager):
    """vLLM's own functions neither: a request must not wait for the C++ compiler."""
    import torch
    from vllm.lora import model_manager
    from vllm.v1.worker import cpu_worker

    from openai_frontend.engines.vllm.processes.worker import CPUWorker

    compiled: list[Any] = []

    @torch.compile(backend=lambda graph, _: compiled.append(graph) or graph)
    def double(x: Any) -> Any:
        return x + x

    for module, name in ((cpu_worker, "CPUModelRunner"), (model_manager, "get_punica_wrapper")):
        monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setattr(cpu_worker.CPUWorker, "init_device", lambda self: None)
    worker: Any = CPUWorker.__new__(CPUWorker)
    worker.model_config = SimpleNamespace(enforce_eager=enforce_eager)

    worker.init_device()

    assert double(torch.ones(2)).tolist() == [2, 2]
    assert bool(compiled) == (not enforce_eager)
