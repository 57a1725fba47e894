"""Triton's core in this process: start, queries, inference requests, stop."""

import asyncio
import atexit
import json
import logging
import time
import weakref
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import psutil

from openai_frontend import errors
from openai_frontend.infer_options import DEFAULT_OPTIONS, InferOptions, SequenceStep
from openai_frontend.model_facts import ModelFacts
from openai_frontend.request_context.context import RequestContext, current
from openai_frontend.request_context.record import RequestRecord
from openai_frontend.runtime.background_tasks import supervise
from openai_frontend.runtime.heartbeat import Heartbeat
from openai_frontend.runtime.load_phases import PHASES
from openai_frontend.triton import (
    _core,
    backends,
    error_codes,
    inprocess,
    library,
    options,
    start_log,
)
from openai_frontend.triton.model_control import ModelControl, lost_models, unload_all
from openai_frontend.triton.model_health import (
    LATEST,
    NOT_READY,
    ModelHealth,
    ModelIndexEntry,
    ReadinessMonitor,
    ReadinessSnapshot,
)
from openai_frontend.triton.responses import (
    ResponseStream,
    TensorInput,
    UnreleasedRequests,
    native_inputs,
)
from openai_frontend.triton.stub_processes import GivenUpStubs, StubProcesses, is_zombie
from openai_frontend.triton.unload_watch import UnloadWatch, watch_unload

logger = logging.getLogger(__name__)

T = TypeVar("T")

STOPPING = "the server is stopping"
_UNLOADED = "unloaded"  # the core's word
_STUB_INTERVAL_S = 10.0
MAX_CHANGE_THREADS = 32  # further loads wait; the event loop's own threads stay free


class Server:
    """The Triton core. Used only on the event loop that ran `start`."""

    def __init__(self, server_options: options.Options) -> None:
        self.options = server_options
        self._core: _core.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._backends: backends.BackendDirectory | None = None
        self._server_folder: Path | None = None
        self._monitor: ReadinessMonitor | None = None
        self._background: list[asyncio.Task[None]] = []
        self._change_threads: ThreadPoolExecutor | None = None
        self.health = ModelHealth()
        self.heartbeat = Heartbeat()  # of all periodic checks
        self.heartbeat.work.append(self._has_work)
        # Its threads survive the stop: interpreter shutdown would crash on them
        self.outlives_stop = False
        self._unreadable: dict[
            str, str
        ] = {}  # model -> why its config could not be read at startup
        # A WeakSet, but without its calls of Python functions
        self._streams: set[weakref.ref[ResponseStream]] = set()
        self.unreleased = UnreleasedRequests()
        self.stubs = StubProcesses()
        self.before_poll: Callable[[], Awaitable[None]] | None = None  # of the repository
        self._control = ModelControl(
            self._change_in_thread, self._states, self.refresh, self._watch_unload
        )

    async def start(self) -> None:
        """Load the library and the core, and wait for the models without blocking the loop.

        Raises `library.LibraryNotFound`, an `errors.GatewayError` if the core does not start, or
        RuntimeError if another core of this process has not stopped. A model that fails to load
        raises nothing; its reason is in `model_index()`.
        """
        loop = asyncio.get_running_loop()
        core_library = library.load(library.find(self.options.library)).path
        inprocess.attach(loop)  # before anything is created: it refuses a second core
        async with AsyncExitStack() as on_failure:
            on_failure.callback(self._undo_start, loop)
            self._server_folder = library.server_folder(core_library)
            self._backends = backends.assemble(
                self.options.backend_directory, core_library, self.options.model_repositories
            )
            self._loop = loop
            ending = supervise("end stubs that Triton has given up", self._end_given_up_stubs)
            self._background = [loop.create_task(ending)]
            starting = loop.create_task(asyncio.to_thread(self._new_core, self._backends.folder))
            on_failure.push_async_callback(self._abandon_start, starting)
            self._core = await asyncio.shield(starting)
            on_failure.pop_all()
        self._control.note_load()
        _stop_at_exit(self)
        loop.add_reader(self._core.response_fd, self._core.drain)
        self._change_threads = ThreadPoolExecutor(MAX_CHANGE_THREADS, "model-change")
        self._monitor = ReadinessMonitor(
            index=self._read_index,
            server_is_ready=partial(self._call, lambda core: core.is_ready()),
            model_is_ready=self._ask_readiness,
            may_change=lambda name, version: inprocess.handle(name, version) is None,
        )
        await self.refresh()
        works = [supervise("monitor readiness", self._watch_readiness)]
        if self.options.model_control_mode == "poll":
            works.append(supervise("poll the model repository", self._poll_repository))
        self._background += [loop.create_task(work) for work in works]

    async def _watch_readiness(self) -> None:
        if self._monitor is not None:
            await self._monitor.watch(self.heartbeat, self._control.is_changing)

    async def _end_given_up_stubs(self) -> None:
        stubs = GivenUpStubs()
        while True:
            await self.heartbeat.next(_STUB_INTERVAL_S)
            if self._core is None or self._control.is_changing():
                await asyncio.to_thread(stubs.kill)
            if self.stubs.reaps:
                await asyncio.to_thread(self.stubs.reap)

    @staticmethod
    async def _abandon_start(starting: asyncio.Task[_core.Server]) -> None:
        """Wait for a cancelled start, and stop the core that it may still create."""
        while not starting.done():
            inprocess.interrupt_loads()
            await asyncio.wait([starting], timeout=0.2)
        if not starting.cancelled() and starting.exception() is None:
            await asyncio.to_thread(starting.result().stop)

    def _undo_start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._end_background()
        inprocess.detach(loop, STOPPING)
        self._loop = None
        self.remove_files()

    async def stop(self) -> None:
        """Fail requests in flight, unload the models, stop the core. Idempotent."""
        core, loop = self._core, self._loop
        if core is None or loop is None:
            return
        self._end_background()
        self._core = None
        self._close_monitor()
        inprocess.detach(loop, STOPPING)
        for stream in self.streams():  # requests to other backends
            stream.cancel_keep_output(partial(errors.ModelUnavailable, STOPPING))
        await self._control.end()
        try:
            await asyncio.to_thread(self._end, core)
        finally:
            loop.remove_reader(core.response_fd)
            core.drain()
            self.unreleased.clear()

    def _end_background(self) -> None:
        for task in self._background:
            task.cancel()

    def _end(self, core: _core.Server) -> None:
        lost = self.stubs.lost_instances() | self.stubs.kill_stopped()
        unloads = self.options.model_control_mode != "poll"  # in which the core refuses to unload
        try:
            if lost or self._control.has_failed_reload or inprocess.has_failed_reload():
                self._leave(core, lost, unloads=unloads)
                return
            if unloads:
                unload_all(core)
            core.stop()
        except _core.TritonError as error:  # requests that never end
            self.outlives_stop = True
            logger.error("Triton's core did not stop: %s", error_codes.from_native(error))
        finally:
            if self._monitor is not None:
                self._monitor.end_threads()
            if self._change_threads is not None:
                self._change_threads.shutdown(wait=False)
            self.remove_files()

    def _leave(self, core: _core.Server, lost: Collection[str], *, unloads: bool) -> None:
        """End without the core, which would wait for the requests of instances that are `lost`, or
        for a reload that failed.
        """
        self.outlives_stop = True
        if lost:
            names = ", ".join(sorted(lost))
            logger.info("stopping without the instances whose process has died: %s", names)
        if unloads:
            models = self._control.lost_models() | lost_models(core, lost)
            unload_all(core, lost=models, within_s=self.options.exit_timeout_s)
        stop = Thread(target=_stop_quietly, args=[core], name="core-stop", daemon=True)
        stop.start()
        if not unloads:  # the core's stop ends the engines
            self._wait_for_engines(stop, stubs=not lost)

    def _wait_for_engines(self, stop: Thread, *, stubs: bool) -> None:
        """Blocks until the engines in this process, and the stubs, have ended during the stop."""
        deadline_s = time.monotonic() + self.options.exit_timeout_s
        while stop.is_alive() and time.monotonic() < deadline_s:
            if not (inprocess.any_handles() or (stubs and self.stubs.any_running())):
                break
            time.sleep(0.02)

    def _close_monitor(self) -> None:
        if self._monitor is not None:
            self._monitor.close()

    def stop_without_loop(self) -> None:
        """Stop the core after its event loop has closed: the last resort at exit."""
        core, self._core = self._core, None
        if core is not None:
            self._close_monitor()
            inprocess.close(STOPPING)
            time.sleep(self._control.settle_delay_s())
            self._end(core)

    def _has_work(self) -> bool:
        """Whether the core starts, models change, or requests run or await their release."""
        if self._core is None:
            return self._loop is not None
        return self._control.is_changing() or not all(each.done for each in self.streams())

    def is_live(self) -> bool:
        """Whether the core is live; False before the start and after the stop."""
        return self._core is not None and self._core.is_live()

    def is_ready(self) -> bool:
        """Whether the core and all models can serve, considering dead in-process engines."""
        if not self._snapshot().server_ready:
            return False
        return not self.options.strict_readiness or not self.unready_models()

    def unready_models(self) -> dict[str, str]:
        """Return why loaded models cannot serve, as of the last snapshot."""
        loaded = {entry.name for entry in self._snapshot().index if entry.state == "READY"}
        unready = [name for name in loaded if not self.model_is_ready(name)]
        return {name: self.model_failure(name) or NOT_READY for name in unready}

    def model_index(self) -> list[ModelIndexEntry]:
        """Return all models of the repositories, one entry per version, as of the last snapshot."""
        self._running()
        return list(self._snapshot().index)

    def model_is_ready(self, name: str, version: int = LATEST) -> bool:
        """Whether the model can serve, as of the last snapshot; detects a dead in-process engine
        immediately.
        """
        if (name, version) not in self._snapshot().ready:
            return False
        return self.model_failure(name, version) is None

    async def refresh(self, changed: str | None = None) -> None:
        """Take a snapshot of the index and readiness now; see `ReadinessMonitor.try_update`."""
        if self._core is not None and self._monitor is not None:
            await self._monitor.refresh(changed)

    async def refresh_index(self) -> None:
        """Take a snapshot unless one was taken just now: folders of the repositories may be new."""
        if self._core is not None and self._monitor is not None:
            await self._monitor.refresh_index()

    def update_snapshot(self) -> None:
        """Take a snapshot now. Blocks: call it on a thread. Raises if the index cannot be read."""
        self._running()
        if self._monitor is not None:
            self._monitor.update()

    def _snapshot(self) -> ReadinessSnapshot:
        if self._core is None or self._monitor is None:
            return ReadinessSnapshot()
        return self._monitor.snapshot

    def _ask_readiness(self, name: str, version: int) -> bool:
        return self._call(lambda core: core.model_is_ready(name, version))

    def _read_index(self) -> list[ModelIndexEntry]:
        entries = json.loads(self._call(lambda core: core.model_index(False)))
        for entry in entries:
            if entry.get("state") == "UNLOADING" and entry["name"] in self._control.given_up:
                entry |= {"state": "UNAVAILABLE", "reason": _UNLOADED}
        return [ModelIndexEntry.read(entry, self._reason(entry)) for entry in entries]

    def _reason(self, entry: Mapping[str, str]) -> str:
        reason = entry.get("reason", "")
        if not reason and "version" not in entry:
            return self._unreadable.get(entry["name"], "")
        return reason if self._backends is None else self._backends.reason(reason)

    def load_phases(self) -> Mapping[str, str]:
        """The models that load and what each does at the moment, empty if unknown. During the
        start: all of them; later only those that load in process.
        """
        starting = {}
        if self._core is None and self._backends is not None:
            starting = start_log.load_phases(self._backends.folder)
        return {**starting, **PHASES.current()}

    def model_failure(self, name: str, version: int = -1) -> str | None:
        """Return why a loaded model can no longer serve, or None without a known problem."""
        return self.health.reason(name) or self.engine_failure(name, version)

    def any_failure(self, name: str) -> str | None:
        """Return why a loaded model, or one of its versions, can no longer serve."""
        return self.model_failure(name) or self.any_engine_failure(name)

    def model_config(self, name: str, version: int = -1) -> dict[str, Any]:
        """Return the model's config, completed by its backend, as Triton prints it."""
        return self._json(lambda core: core.model_config(name, version))

    def model_metadata(self, name: str, version: int = -1) -> dict[str, Any]:
        """Return the model's metadata in KServe's form: versions, platform, inputs, outputs."""
        return self._json(lambda core: core.model_metadata(name, version))

    def model_statistics(self, name: str = "", version: int = -1) -> dict[str, Any]:
        """Return the statistics of one model, or of all if the name is empty."""
        return self._json(lambda core: core.model_statistics(name, version))

    def metadata(self) -> dict[str, Any]:
        """Return the core's name, version and extensions."""
        return self._json(lambda core: core.metadata())

    def model_is_decoupled(self, name: str, version: int = -1) -> bool:
        """Whether a request to the model can have any number of responses."""
        return self._call(lambda core: core.model_is_decoupled(name, version))

    def model_facts(self, name: str, version: int = -1) -> ModelFacts | None:
        """Return what an in-process engine reported about its model; None for other backends."""
        handle = inprocess.handle(name, version)
        return None if handle is None else handle.facts

    def set_adapters(self, name: str, adapters: Mapping[str, Any]) -> None:
        """Set the adapters that requests to an in-process model may name."""
        inprocess.set_adapters(name, adapters)

    def model_gauges(self, name: str, version: int = -1) -> dict[str, float]:
        """An in-process engine's gauges: `running`, `waiting` and its own; empty for others."""
        handle = inprocess.handle(name, version)
        if handle is None:
            return {}
        stats = handle.stats()
        return {"running": stats.running, "waiting": stats.waiting, **stats.gauges}

    def model_samples(self, name: str, version: int = -1) -> list[inprocess.Sample]:
        """Return further metric samples of an in-process engine; empty for others."""
        handle = inprocess.handle(name, version)
        return [] if handle is None else list(handle.samples())

    def set_log(self, name: str, value: str | int | bool) -> None:
        """Change a setting of the core's log, by its key in Triton's logging extension."""
        self._running()  # a start would restore the settings at its end
        start_log.set_log(name, value)

    async def load_model(
        self,
        name: str,
        *,
        config: str | None = None,
        model_files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Load or reload a model and wait for it (explicit mode).

        `config` is a model config as JSON that replaces the repository's; `model_files` maps paths
        within the model's folder to contents, replaces the folder and requires a config. Requests
        in flight finish on the replaced model. Raises the reason if the model does not load.
        """
        self._check_control()
        if inprocess.handles(name) and self.any_failure(name):
            # The core reloads a model only if its files changed: unload a failed engine first. Not
            # a stub: its unload could wait for requests that never end.
            await self.unload_model(name)
        before = self._stubs_of(name)
        await self._control.load(name, config, model_files or {})
        # The core keeps the instance of a process that has died with requests in flight
        self.stubs.abandon([each for each in before if is_zombie(each)])

    def _stubs_of(self, name: str) -> list[psutil.Process]:
        """The processes of a loaded model of the Python backend."""
        try:
            return self.stubs.serving(self.model_config(name))
        except errors.GatewayError:  # not loaded
            return []

    async def load_again(self, name: str, config: str) -> None:
        """Reload a model with another config, in the modes `explicit` and `none`."""
        await self._control.load(name, config, {})

    async def run_shielded(self, change: Coroutine[Any, Any, None]) -> None:
        """Await a model's change; see `ModelControl.run_shielded`."""
        await self._control.run_shielded(change)

    async def unload_model(self, name: str) -> None:
        """Unload a model and wait until it is gone or was loaded again (explicit mode).

        It starts once no load is running. Triton waits for the model's requests: those of an engine
        in this process that hangs fail at once.
        """
        self._check_control()
        if (failure := self.any_failure(name)) is not None:
            for handle in inprocess.handles(name):
                handle.interrupt(failure)
        await self._control.unload(name)

    async def _watch_unload(self, name: str) -> UnloadWatch:
        configs = await asyncio.to_thread(self._configs)
        return watch_unload(name, configs, self.stubs, self.streams)

    def _configs(self) -> dict[str, dict[str, Any]]:
        """The configs of the loaded models."""
        found = {}
        for name in {entry.name for entry in self.model_index() if entry.state == "READY"}:
            with suppress(errors.GatewayError):  # unloaded meanwhile
                found[name] = self.model_config(name)
        return found

    def is_changing(self) -> bool:
        """Whether models are being loaded, unloaded or polled."""
        return self._control.is_changing()

    def _check_control(self) -> None:
        """Check the mode here: the core would allow it in mode `none` (`options.native`)."""
        if self.options.model_control_mode != "explicit":
            raise errors.ModelUnavailable(
                "models can be loaded and unloaded by request only if "
                "'model_control_mode' is 'explicit'"
            )

    def _states(self, name: str) -> list[str]:
        return [entry.state for entry in self.model_index() if entry.name == name]

    def metrics(self) -> str:
        """Return the core's metrics as Prometheus text."""
        return self._call(lambda core: core.metrics())

    def infer(
        self,
        model_name: str,
        inputs: Mapping[str, TensorInput],
        *,
        version: int = -1,
        request_id: str = "",
        options: InferOptions = DEFAULT_OPTIONS,
    ) -> ResponseStream:
        """Send a request. The caller owns the stream and must cancel it at the end.

        Raises if the core rejects the request immediately.
        """
        if self._core is None or self._loop is None:
            raise errors.ModelUnavailable("the server is not running")
        self.health.check(model_name)
        self.heartbeat.begin()
        request = current.get(None)
        trace: tuple[_core.RequestTrace, ...] = ()
        if request is not None and request.record is not None:
            trace = _trace(request, request.record, model_name)
        try:
            native = self._core.infer(
                model_name,
                version,
                native_inputs(inputs),
                request_id,
                options.priority,
                options.timeout_us,
                None if options.parameters is None else dict(options.parameters),
                None if options.sequence is None else _sequence(options.sequence),
                [(each.name, each.labels_from, each.memory) for each in options.outputs]
                if options.outputs
                else (),
                *trace,
            )
        except _core.TritonError as error:
            raise error_codes.from_native(error) from error
        stream = ResponseStream(
            native,
            self._loop,
            model_name,
            self.unreleased,
            None if request is None else request.deferred_release,
        )
        self._streams.add(weakref.ref(stream, self._streams.discard))
        return stream

    def set_stubs(self, running: dict[str, tuple[int, list[str]]]) -> None:
        """Set, for each instance of the Python backend, its stub's process and the models that use
        it: if Triton calls the stub unhealthy, it is killed and their requests fail.
        """
        if self._core is not None:  # a server that has stopped has none
            self._core.set_stubs(running)

    def unhealthy_stubs(self) -> dict[str, bool]:
        """Return the instances whose stub Triton called unhealthy, until `set_stubs` names
        another process; true if the stub was alive.
        """
        return {} if self._core is None else self._core.unhealthy_stubs()

    def streams(self) -> list[ResponseStream]:
        """The requests that are still referenced."""
        streams = (reference() for reference in self._streams.copy())
        return [stream for stream in streams if stream is not None]

    def _new_core(self, folder: Path) -> _core.Server:
        native = options.native(self.options, folder, self._server_folder)
        try:
            with start_log.capture(native, self.options, folder) as log:
                core = _core.Server(native)
        except _core.TritonError as error:
            raise error_codes.from_native(error) from error
        if not core.is_live():
            raise errors.ModelUnavailable("; ".join(log.errors) or "the core did not start")
        self._unreadable = log.unreadable_models
        return core

    def _call(self, ask: Callable[[_core.Server], T]) -> T:
        try:
            return ask(self._running())
        except _core.TritonError as error:
            raise error_codes.from_native(error) from error

    def _running(self) -> _core.Server:
        if self._core is None:
            raise errors.ModelUnavailable("the server is not running")
        return self._core

    async def _change_in_thread(
        self, change: Callable[[_core.Server], None], model_name: str | None
    ) -> None:
        """Change a model, or several, and take a snapshot."""
        self._running()
        self.heartbeat.begin()

        def work() -> None:
            try:
                self._call(change)
            finally:
                if self._core is not None and self._monitor is not None:
                    self._monitor.try_update(model_name)

        await asyncio.get_running_loop().run_in_executor(self._change_threads, work)

    def _json(self, ask: Callable[[_core.Server], str]) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self._call(ask))
        return document

    def engine_failure(self, name: str, version: int = -1) -> str | None:
        """Return why a loaded in-process engine can serve no more, or None."""
        handle = inprocess.handle(name, version)
        return handle.failure() if handle is not None else None

    def any_engine_failure(self, name: str) -> str | None:
        """Return why the in-process engine of a loaded version can serve no more, or None."""
        failures = (handle.failure() for handle in inprocess.current_handles(name))
        return next((failure for failure in failures if failure is not None), None)

    async def _poll_repository(self) -> None:
        while True:
            await asyncio.sleep(self.options.repository_poll_s)
            if self.before_poll is not None:
                await self.before_poll()
            try:
                await self._control.poll()
            except errors.GatewayError as error:
                logger.warning("polling the model repository failed: %s", error)

    def remove_files(self) -> None:
        """Remove the temporary folder, also if the process ends without stopping the core."""
        if self._backends is not None:
            self._backends.remove()
            self._backends = None


def _sequence(step: SequenceStep) -> tuple[int | str, bool, bool]:
    return step.id, step.start, step.end


def _trace(
    request: RequestContext, record: RequestRecord, model: str
) -> "tuple[_core.RequestTrace, ...]":
    """The trace of the core's part of a request, if the request is traced."""
    sampler = record.sampler
    if sampler is not None and (sampled := sampler.sample(record, model)) is not None:
        level, finish = sampled
        trace = _core.RequestTrace("", level)
        request.at_end(partial(finish, trace))
        return (trace,)
    if record.core_context is None:
        return ()
    trace = _core.RequestTrace(record.core_context)
    return (trace,) if record.follows(trace) else ()


def _stop_quietly(core: _core.Server) -> None:
    with suppress(_core.TritonError):  # known: it cannot stop
        core.stop()


def _stop_at_exit(server: Server) -> None:
    """Stop the core before the interpreter ends: otherwise it would call into a dead Python."""
    reference = weakref.ref(server)

    def stop() -> None:
        if (running := reference()) is not None:
            running.stop_without_loop()

    atexit.register(stop)
