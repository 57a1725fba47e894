"""The scheduler class that vLLM's process uses; no engine runs."""

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.engine


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the constructor: vLLM's schedulers need an engine's whole config."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    def made_of_nothing(_: Any, **given: Any) -> None:
        assert given.keys() == {"vllm_config", "structured_output_manager"}

    for kind in (Scheduler, AsyncScheduler):
        monkeypatch.setattr(kind, "__init__", made_of_nothing)


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_scheduler_has_all_mixins(asynchronous: bool) -> None:
    """Either of vLLM's schedulers comes after the project's mixins, and each mixin works in the
    engine.
    """
    from vllm.config import StructuredOutputsConfig
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    from openai_frontend.engines.vllm.scheduler import (
        BatchedBitmaskMixin,
        GrammarQuotaMixin,
        scheduler,
    )
    from openai_frontend.engines.vllm.stats import StatsMixin

    config = SimpleNamespace(
        structured_outputs_config=StructuredOutputsConfig(backend="guidance"),
        scheduler_config=SimpleNamespace(async_scheduling=asynchronous),
    )

    made = scheduler(vllm_config=config, structured_output_manager=None)

    assert isinstance(made, AsyncScheduler) is asynchronous
    for part in (StatsMixin, GrammarQuotaMixin, BatchedBitmaskMixin):
        assert isinstance(made, part)


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize(
    ("backend", "filtered"), [("auto", True), ("xgrammar", True), ("guidance", False)]
)
def test_xgrammar_never_runs_without_the_control_character_filter(
    backend: str, filtered: bool
) -> None:
    """An explicit `xgrammar` gets the same backend as `auto`; other backends remain vLLM's own."""
    from vllm.config import StructuredOutputsConfig

    from openai_frontend.engines.vllm.scheduler import AutoBackend, scheduler

    config = SimpleNamespace(
        structured_outputs_config=StructuredOutputsConfig(backend=backend),
        scheduler_config=SimpleNamespace(async_scheduling=False),
        model_config=SimpleNamespace(get_vocab_size=lambda: 8),
    )
    manager = SimpleNamespace(backend=None, tokenizer=range(8))

    scheduler(vllm_config=config, structured_output_manager=manager)

    assert isinstance(manager.backend, AutoBackend) is filtered
