"""An engine that is made again while its adapters change, or are not taken."""

import threading
from pathlib import Path

from openai_frontend.engines.engine import Engine, ModelFacts
from openai_frontend.engines.handle import EngineHandle
from openai_frontend.generation import Adapter

ADAPTERS = {"one": Adapter(name="one", id=1, path=Path("/one"))}
FACTS = ModelFacts(max_model_len=8)


class Adapting(Engine):
    """Notes the adapters that it is told of."""

    def __init__(self):
        self.adapters = None

    def load(self, model):
        return FACTS

    def generate(self, request, sink):
        raise AssertionError("nobody asks it anything")

    def set_adapters(self, adapters):
        self.adapters = adapters


class Refusing(Adapting):
    def set_adapters(self, adapters):
        raise KeyError("no adapters here")


class Slow(Adapting):
    """It lets others run in the middle of it."""

    def __init__(self):
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def set_adapters(self, adapters):
        if not self.begun.is_set():
            self.begun.set()
            assert self.go_on.wait(60)
        super().set_adapters(adapters)


def host(*engines: Engine) -> EngineHandle:
    """Of the first engine, which the others replace one after the other."""
    first, *others = engines
    after = iter(others)
    return EngineHandle("model-1", first, FACTS, lambda: (next(after), FACTS))


def test_failing_set_adapters_is_only_logged(caplog):
    """The engine keeps serving; the log has the exception, as at the first load."""
    made = host(Adapting(), Refusing())
    made.interrupt("it died")
    made.restart()

    assert made.failure() is None
    assert "set_adapters failed" in caplog.text


def test_adapters_that_change_during_a_restart():
    """The new engine gets the latest adapters."""
    slow = Slow()
    made = host(Adapting(), slow)
    restarting = threading.Thread(target=made.restart)
    restarting.start()
    assert slow.begun.wait(60)
    changing = threading.Thread(target=made.set_adapters, args=(ADAPTERS,))
    changing.start()
    changing.join(0.1)
    slow.go_on.set()
    for thread in (restarting, changing):
        thread.join(60)

    assert slow.adapters == ADAPTERS
