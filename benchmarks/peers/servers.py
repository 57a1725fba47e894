"""The three servers: their commands, their environment, their start and their end.

None is pinned to a core, and all get the same engine arguments (ENGINE_ARGUMENTS).
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib import request
from urllib.error import URLError

import psutil

from benchmarks.peers import processes, rust_binary
from benchmarks.server_process import ROOT, ServerFailed
from tests.ports import free_port

GATEWAY, VLLM, VLLM_RUST = SERVERS = ("gateway", "vllm", "vllm-rust")
MODEL = "peer"

# From max_num_seqs to the policy they are vLLM's own defaults on a CPU; the gateway's policy is
# another, and no server shall choose for itself
ENGINE_ARGUMENTS: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "kv_cache_memory_bytes": 128 * 1024 * 1024,
    "block_size": 32,
    "max_num_seqs": 128,
    "max_num_batched_tokens": 2048,
    "scheduling_policy": "fcfs",
    "disable_log_stats": True,
}
GENERATE: dict[str, Any] = {"max_model_len": 1024}
LONG: dict[str, Any] = {"max_model_len": 32768}
# The gateway reads both off the chat template
TOOLS: dict[str, Any] = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
# Instead of some of ENGINE_ARGUMENTS: two servers share the GPU
ON_GPU: dict[str, Any] = {
    "dtype": "bfloat16",
    "enforce_eager": False,
    "kv_cache_memory_bytes": 4 * 1024**3,
    "gpu_memory_utilization": 0.4,
    "block_size": 16,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
}
SEEING: dict[str, Any] = {"max_model_len": 2048, "limit_mm_per_prompt": {"image": 32}}
POOLING: dict[str, Any] = {"max_model_len": 256, "runner": "pooling"}

_ALWAYS = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
LEAN, DEFAULT = FLAGS = ("lean", "default")
OWN = "own"
_FLAGS: dict[str, dict[str, str]] = {
    # The executor runs inside EngineCore, on one thread that is not pinned
    LEAN: {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"},
    # What vLLM takes where nothing is said; said all the same, for the gateway would say otherwise
    DEFAULT: {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
    OWN: {},  # what each server takes by itself
}
_CONFIG = """backend: "inprocess"
parameters { key: "engine" value: { string_value: "vllm" } }
instance_group [{ count: 1, kind: KIND_MODEL }]
"""
_READY = {GATEWAY: "/health/ready", VLLM: "/health", VLLM_RUST: "/health"}
_START_S = 240.0
_STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class Setup:
    """What all servers of a run share."""

    folder: Path  # for the gateway's repository and the logs
    model: Path
    flags: str
    arguments: Mapping[str, Any]  # besides ENGINE_ARGUMENTS
    frontend: Mapping[str, Any] = field(default_factory=dict)  # of vLLM's own servers
    gateway: Sequence[str] = ()  # options of the gateway
    image_processes: int | None = None  # of the gateway's engine; None: its default


def environment(name: str, flags: str) -> dict[str, str]:
    """All variables of a server's process."""
    dropped = ("OMP_NUM_THREADS", "VLLM_ENABLE_V1_MULTIPROCESSING")
    ours = {key: value for key, value in os.environ.items() if key not in dropped}
    rust = {}
    if name == VLLM_RUST:
        rust = {
            "VLLM_USE_RUST_FRONTEND": "1",
            "VLLM_RUST_FRONTEND_PATH": str(rust_binary.find()),
        }
    return ours | _ALWAYS | _FLAGS[flags] | rust


def command(name: str, setup: Setup, port: int) -> list[str]:
    """The command line of a server."""
    arguments = ENGINE_ARGUMENTS | dict(setup.arguments)
    if name == GATEWAY:
        repository = _write_repository(setup, arguments)
        gateway = [sys.executable, "-m", "openai_frontend.cli", "serve", f"--port={port}"]
        return [
            *gateway,
            f"--model-repository={repository}",
            "--graceful-shutdown-timeout-s=1",
            *setup.gateway,
        ]
    vllm = [str(Path(sys.executable).with_name("vllm")), "serve", str(setup.model)]
    address = [f"--port={port}", "--host=127.0.0.1", f"--served-model-name={MODEL}"]
    return [
        *vllm,
        *address,
        "--disable-uvicorn-access-log",
        *_options(arguments | dict(setup.frontend)),
    ]


def _options(arguments: Mapping[str, Any]) -> list[str]:
    names = {name: f"--{name.replace('_', '-')}" for name in arguments}
    return [
        names[name] if value is True else f"{names[name]}={_text(value)}"
        for name, value in arguments.items()
        if value is not False
    ]


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)


def _write_repository(setup: Setup, arguments: Mapping[str, Any]) -> Path:
    repository = setup.folder / "repository"
    version = repository / MODEL / "1"
    version.mkdir(parents=True, exist_ok=True)
    config = _CONFIG
    if (count := setup.image_processes) is not None:
        config += f'parameters {{ key: "image_processes" value: {{ string_value: "{count}" }} }}\n'
    (version.parent / "config.pbtxt").write_text(config)
    (version / "model.json").write_text(json.dumps({"model": str(setup.model), **arguments}))
    return repository


class PeerServer:
    """`with PeerServer(name, setup):` a server that answers."""

    def __init__(self, name: str, setup: Setup, *, waits: bool = True) -> None:
        """`waits`: until it is ready."""
        self._waits = waits
        self.name = name
        self.port = free_port()
        self._setup = setup
        self._log = setup.folder / f"{name}.log"

    def __enter__(self) -> "PeerServer":
        # In our session. In one of its own, Linux groups it apart from the client (autogroup), and
        # where vLLM's workers spin the client then waited up to six seconds for a core.
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command(self.name, self._setup, self.port),
                env=environment(self.name, self._setup.flags),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            if self._waits:
                self._wait_until_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def pids(self) -> dict[str, list[int]]:
        """Its processes by role."""
        return processes.roles(processes.names(self.processes()))

    def processes(self) -> list[psutil.Process]:
        """The root comes first: stopped first, it starts nothing meanwhile."""
        return processes.tree(self._process.pid)

    def log(self) -> str:
        """What it has said, the end of it."""
        return self._log.read_text(errors="replace")[-5000:]

    def _wait_until_ready(self) -> None:
        end_s = time.monotonic() + _START_S
        while not self._is_ready():
            if self._process.poll() is not None:
                code = self._process.returncode
                raise ServerFailed(f"{self.name} ended with {code}:\n{self.log()}")
            if time.monotonic() > end_s:
                raise ServerFailed(f"{self.name} was not ready in {_START_S:.0f} s:\n{self.log()}")
            time.sleep(0.2)

    def _is_ready(self) -> bool:
        url = f"http://127.0.0.1:{self.port}{_READY[self.name]}"
        try:
            with request.urlopen(url, timeout=5) as response:
                return bool(response.status == 200)
        except (URLError, OSError):
            return False

    def _stop(self) -> None:
        """The polite way; then the other, to each process that is left of it."""
        everything = self.processes()
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        processes.kill_left(everything)
