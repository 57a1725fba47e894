"""Triton's trace settings: which requests become traces, changed while the server runs."""

import contextlib
from typing import Any

import pytest

from openai_frontend import lifespan
from openai_frontend.request_context.record import RequestRecord
from openai_frontend.tracing import Tracing
from tests.api.kserve.conftest import other_app
from tests.api.kserve.grpc_client import rpc_client
from tests.fast.tracing.test_tracing import Kept

pytestmark = pytest.mark.asyncio(loop_scope="package")

PATH = "/v2/trace/setting"


@contextlib.asynccontextmanager
async def traced(kserve, ratio=1.0):
    """An application that traces, without OpenTelemetry; and the records that it exports."""
    kept = Kept()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifespan, "tracing_of", lambda _: Tracing(kept, ratio=ratio))
        async with other_app(kserve) as app:
            yield app, kept.records


async def exported(app, records: list[RequestRecord], requests=1, **headers):
    """How many of that many requests become traces."""
    before = len(records)
    for _ in range(requests):
        await app.client.get("/v2/models/one", headers=headers)
    return len(records) - before


async def test_level_turns_traces_off_and_on(kserve):
    """While the level is OFF, no request is traced, also not for a caller that is."""
    caller = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    async with traced(kserve) as (app, records):
        before = await exported(app, records, **caller)
        off = await app.client.post(PATH, json={"trace_level": ["OFF"]})
        silent = await exported(app, records, **caller)
        on = await app.client.post(PATH, json={"trace_level": ["TIMESTAMPS"]})
        after = await exported(app, records, **caller)

    assert (before, silent, after) == (1, 0, 1)
    assert off.json()["trace_level"] == ["OFF"]
    assert on.json() == {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": "1",
        "trace_count": "-1",
        "trace_mode": "opentelemetry",
    }


async def test_rate_is_one_of_that_many(kserve):
    """Null restores the rate that the server was started with."""
    async with traced(kserve, ratio=0.5) as (app, records):
        started = (await app.client.get(PATH)).json()["trace_rate"]
        rare = await app.client.post(PATH, json={"trace_rate": "4000000000"})
        few = await exported(app, records, requests=20)
        await app.client.post(PATH, json={"trace_rate": "1"})
        all_of_them = await exported(app, records, requests=20)
        restored = await app.client.post(PATH, json={"trace_rate": None})

    assert (started, rare.json()["trace_rate"], restored.json()["trace_rate"]) == (
        "2", "4000000000", "2",
    )  # fmt: skip
    assert (few, all_of_them) == (0, 20)


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "file": ({"trace_file": "x"}, 501, "--otlp-endpoint"),
    "count": ({"trace_count": "5"}, 501, "trace_level"),
    "frequency": ({"log_frequency": "5"}, 501, "OTEL_BSP_SCHEDULE_DELAY"),
    "unknown": ({"x": "5"}, 400, "unknown trace setting 'x'"),
    "level": ({"trace_level": ["TENSORS"]}, 400, "tensors are never traced"),
    "two levels": ({"trace_level": ["OFF", "TIMESTAMPS"]}, 400, "'trace_level' must be"),
    "number": ({"trace_rate": 5}, 400, "'trace_rate' must be a string"),
    "negative": ({"trace_rate": "-5"}, 400, "'trace_rate' must be a string"),
    "too large": ({"trace_rate": str(2**32)}, 400, "to 4294967295"),
    "too many digits": ({"trace_rate": "9" * 5000}, 400, "to 4294967295"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_refused_settings_change_nothing(kserve, case):
    """The error names the key and what to use."""
    settings, status, message = REFUSED[case]
    async with traced(kserve) as (app, _):
        before = (await app.client.get(PATH)).json()
        response = await app.client.post(PATH, json={"trace_rate": "7", **settings})
        after = (await app.client.get(PATH)).json()

    assert (response.status_code, list(response.json())) == (status, ["error"])
    assert message in response.json()["error"]
    assert after == before


async def test_one_model_has_the_settings_of_all(kserve):
    """They can be read, and a change is refused with the path to use."""
    path = "/v2/models/one/trace/setting"
    async with traced(kserve) as (app, _):
        everything = (await app.client.get(PATH)).json()
        read = await app.client.get(path)
        changed = await app.client.post(path, json={"trace_rate": "2"})
        unknown = await app.client.get("/v2/models/absent/trace/setting")

    assert read.json() == everything
    assert (changed.status_code, PATH in changed.json()["error"]) == (501, True)
    assert unknown.status_code == 404


async def test_without_a_collector(kserve):
    """The level is OFF, and a change names the setting that traces need."""
    read = await kserve.client.get(PATH)
    changed = await kserve.client.post(PATH, json={"trace_level": ["TIMESTAMPS"]})

    assert read.json()["trace_level"] == ["OFF"]
    assert (changed.status_code, "--otlp-endpoint" in changed.text) == (501, True)


async def test_grpc_changes_the_same_settings(kserve):
    """An empty value restores a setting, as null does over HTTP."""
    async with traced(kserve) as (app, _), rpc_client(app.app) as rpc:
        changed = await rpc.ask("TraceSetting", settings={"trace_rate": {"value": ["9"]}})
        over_http = (await app.client.get(PATH)).json()
        restored = await rpc.ask("TraceSetting", settings={"trace_rate": {}}, model_name="")
        model = await rpc.ask("TraceSetting", model_name="one")
        refusals = [
            await rpc.refusal("TraceSetting", model_name="one", settings={"trace_rate": {}}),
            await rpc.refusal("TraceSetting", model_name="absent"),
            await rpc.refusal("TraceSetting", settings={"trace_level": {"value": ["X"]}}),
        ]

    assert list(changed.settings["trace_rate"].value) == ["9"]
    assert list(changed.settings["trace_level"].value) == ["TIMESTAMPS"]
    assert over_http["trace_rate"] == "9"
    assert restored.settings["trace_rate"].value == model.settings["trace_rate"].value == ["1"]
    assert [code for code, _ in refusals] == ["UNIMPLEMENTED", "NOT_FOUND", "INVALID_ARGUMENT"]
