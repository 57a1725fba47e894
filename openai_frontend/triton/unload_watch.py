"""Ends the wait for an unload that Triton will not complete."""

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import psutil

from openai_frontend.errors import ModelFailed
from openai_frontend.triton.ensembles import Config, parts, with_ensembles
from openai_frontend.triton.responses import ResponseStream
from openai_frontend.triton.stub_processes import StubProcesses, has_ended, is_stopped

# Triton completes an unload within 3 s of the end of the model's last process, or never
COMPLETES_WITHIN_S = 10.0
# A model's `finalize` may take this long, if none of its requests is in flight
FINALIZE_WITHIN_S = 120.0

_DIED = "its process has died while the model is being unloaded"


class UnloadWatch:
    """Watches the stub processes of a model while Triton unloads it.

    Triton waits for the model's requests. Requests in a process that has died never end, and a
    process that hangs does not finalize its model.
    """

    def __init__(
        self,
        stubs: StubProcesses,
        own: Iterable[psutil.Process],
        of_parts: Iterable[psutil.Process],
        streams: Callable[[], list[ResponseStream]],
    ) -> None:
        """`own` are the model's processes, and `of_parts` those of the models that an ensemble
        calls: they are not killed, because they may serve others. `streams` returns the requests in
        flight that use the model.
        """
        self._stubs = stubs
        self._own, self._of_parts = frozenset(own), frozenset(of_parts)
        self._streams = streams
        self._ended: frozenset[psutil.Process] = frozenset()
        self._changed_s = time.monotonic()  # when a process ended last, or a request was in flight
        # A process ended before its model was finalized
        self.has_died = any(map(has_ended, self._own | self._of_parts))

    def gives_up(self, now_s: float) -> bool:
        """Whether Triton will not complete the unload. Fails requests that will not end, and kills
        processes that hang.
        """
        ended = frozenset(each for each in self._own | self._of_parts if has_ended(each))
        running = [stream for stream in self._streams() if not stream.done]
        self.has_died |= bool(running and ended - self._ended)
        if running or ended != self._ended:
            self._changed_s, self._ended = now_s, ended
        if self.has_died:
            self._fail(running)
        waited_s = now_s - self._changed_s
        if self.has_died or waited_s >= FINALIZE_WITHIN_S:
            self._stubs.kill(self._own - ended)
        elif not running:
            self._stubs.kill(filter(is_stopped, self._own - ended))  # it cannot finalize its model
        complete = bool(self._own) and self._own <= ended
        if waited_s < COMPLETES_WITHIN_S or not (complete or self._of_parts & ended):
            return False
        self._stubs.abandon(self._own)
        return True

    @staticmethod
    def _fail(streams: Iterable[ResponseStream]) -> None:
        for stream in streams:
            stream.abandon()
            stream.fail(partial(ModelFailed, stream.model_name, _DIED))


def watch_unload(
    name: str,
    configs: Mapping[str, Config],
    stubs: StubProcesses,
    streams: Callable[[], list[ResponseStream]],
) -> UnloadWatch:
    """Watch the unload of a model. `configs` are those of the loaded models, `streams` returns all
    requests in flight.
    """
    users = with_ensembles(configs, {name})
    contained = parts(name, lambda part: configs.get(part, {}))
    return UnloadWatch(
        stubs,
        stubs.serving(configs.get(name, {})),
        [each for part in contained for each in stubs.serving(configs.get(part, {}))],
        lambda: [stream for stream in streams() if stream.model_name in users],
    )
