"""The whole application on a socket, over the real core, with echo models and mock models."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from openai_frontend.app import create_app
from openai_frontend.config.settings import Settings
from openai_frontend.triton import Options, Server, inprocess
from tests import mock_models
from tests.uvicorn_server import serving

ALL = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16",
    "BF16", "FP32", "FP64", "BYTES",
)  # fmt: skip


def sequence_batching(id_type: str, strategy: str) -> str:
    """The end of a config whose model learns from control inputs about sequences."""
    control = (
        '{{ name: "{0}" control [{{ kind: CONTROL_SEQUENCE_{0} int32_false_true: [0, 1] }}] }},'
    )
    flags = "".join(map(control.format, ("START", "READY", "END")))
    correlated = f"{{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_{id_type} }}"
    return f"""
max_batch_size: 4
sequence_batching {{
  {strategy}
  max_sequence_idle_microseconds: 60000000
  control_input [{flags} {{ name: "CORRID" control [{correlated}] }}]
}}
"""


LABELLED = 'output { name: "OUT" data_type: TYPE_%s dims: [4] label_filename: "LABELS" }'
DECOUPLED = " model_transaction_policy { decoupled: true }"


def tensor(name: str, datatype: str, dims: list[int], **more: Any) -> str:
    """An input in a config.pbtxt."""
    data_type = f"TYPE_{datatype}".replace("BYTES", "STRING")
    options = " ".join(f"{key}: {str(value).lower()}" for key, value in more.items())
    return f'input {{ name: "{name}" data_type: {data_type} dims: {json.dumps(dims)} {options} }}'


def write_models(repository: Path) -> None:
    """`all` takes any tensor, `one` a vector, `batched` pairs, `parts` bytes in
    hexadecimal, one per response, and `ended` then an empty one; `sums` and `sums_by_name` add up
    the numbers of a sequence; `labelled` and `labelled_batches` have labels; `ragged` waits
    for two requests; `mock` and `failing` write text."""
    backend = 'backend: "inprocess"\n'
    configs = {
        "all": "\n".join(tensor(name, name, [-1], optional=True) for name in ALL),
        "one": tensor("IN", "FP32", [-1]),
        "text": tensor("IN", "BYTES", [1]),
        "parts": tensor("IN", "BYTES", [-1]) + DECOUPLED,
        "ended": tensor("IN", "BYTES", [-1]) + DECOUPLED,
        "sums": tensor("IN", "INT32", [1]) + sequence_batching("UINT64", "direct {}"),
        "sums_by_name": tensor("IN", "INT32", [1])
        + sequence_batching("STRING", "oldest { max_candidate_sequences: 4 }"),
        "ragged": "max_batch_size: 2 dynamic_batching { preferred_batch_size: [2] "
        "max_queue_delay_microseconds: 60000000 }\n"
        + tensor("IN", "INT32", [-1], allow_ragged_batch=True),
        "labelled": tensor("IN", "FP32", [4]) + LABELLED % "FP32",
        "labelled_batches": "max_batch_size: 8\n" + tensor("IN", "INT32", [4]) + LABELLED % "INT32",
        "batched": "max_batch_size: 8\n" + tensor("IN", "INT32", [2]),
    }
    for name, config in configs.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(backend + config)
        if "LABELS" in config:
            (repository / name / "LABELS").write_text("cat\ndog\n\n")  # the last have none
    mock_models.write(repository, "mock", tokens=["Hel", "lo"], answer_tokens=2)
    mock_models.write(repository, "slow", tokens_per_second=50.0)
    mock_models.write(repository, "failing", fail_after_tokens=2)


@dataclass
class HttpClient:
    """Sends requests of KServe's protocol."""

    client: httpx.AsyncClient

    @property
    def url(self) -> str:
        return str(self.client.base_url).rstrip("/")

    async def infer(self, model: str, *inputs: dict[str, Any], **fields: Any) -> httpx.Response:
        body = {"inputs": inputs, **fields}
        return await self.client.post(f"/v2/models/{model}/infer", json=body)

    async def generate(self, model: str, **fields: Any) -> httpx.Response:
        return await self.client.post(f"/v2/models/{model}/generate", json=fields)


@dataclass
class KServe(HttpClient):
    """A running application and a client of it."""

    server: Server
    repository: Path
    app: Any


@contextlib.asynccontextmanager
async def listening(app: Any) -> AsyncIterator[str]:
    """Serves the application on a free port and yields its URL."""
    async with serving(app, timeout_graceful_shutdown=1) as (_, (host, port)):
        yield f"http://{host}:{port}"


@contextlib.asynccontextmanager
async def running(repository: Path, **settings: Any) -> AsyncIterator[KServe]:
    """An application over a core that has loaded the repository's models."""
    server = Server(Options(model_repositories=[repository], model_control_mode="explicit",
                            startup_models=["*"], exit_timeout_s=20))  # fmt: skip
    options = Settings(model_repository=[repository], model_control_mode="explicit", **settings)
    app = create_app(options, server)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inprocess, "RUNTIME", "tests.api.kserve.runtime")
        async with app.router.lifespan_context(app), listening(app) as url:
            while not app.state.registry.has_loaded():  # noqa: ASYNC110  a start has no event
                await asyncio.sleep(0.01)
            async with httpx.AsyncClient(base_url=url) as client:
                yield KServe(client, server, repository, app)
            loaded = {each["name"] for each in server.model_statistics()["model_stats"]}
            await asyncio.gather(*(server.unload_model(name) for name in loaded))


@contextlib.asynccontextmanager
async def other_app(running: KServe, **settings: Any) -> AsyncIterator[KServe]:
    """Another application over the same core."""
    app = create_app(Settings(model_repository=[running.repository], **settings), running.server)
    await app.state.registry.refresh()
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield KServe(client, running.server, running.repository, app)
    app.state.registry.close()


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def kserve(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KServe]:
    """One application for the whole package, because a core takes long to stop."""
    repository = tmp_path_factory.mktemp("kserve")
    write_models(repository)
    async with running(repository, enable_model_management=True, allow_model_override=True) as app:
        yield app
