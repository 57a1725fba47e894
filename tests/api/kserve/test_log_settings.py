"""POST /v2/logging and LogSettings: the core's log changes while the server runs."""

from typing import Any

import grpc.aio
import pytest

from tests.api.kserve.conftest import other_app
from tests.api.kserve.grpc_client import rpc_client
from tests.fast.auth import key_files
from tests.fast.auth.key_files import bearer, key

pytestmark = pytest.mark.asyncio(loop_scope="package")

PATH = "/v2/logging"
THREE = {"name": "IN", "shape": [3], "datatype": "FP32", "data": [1, 2, 3]}


@pytest.fixture(autouse=True)
def log_as_before(kserve):
    """The core has one logger for the process."""
    before = dict(kserve.app.state.kserve.log_settings.get())
    yield
    del before["log_file"]
    kserve.app.state.kserve.log_settings.update(before)


async def set_log(kserve, **settings):
    return await kserve.client.post(PATH, json=settings)


async def infer_log(kserve, capfd):
    """The core's verbose lines about one request."""
    capfd.readouterr()
    assert (await kserve.infer("one", THREE)).status_code == 200
    return [line for line in capfd.readouterr().err.splitlines() if "infer_request" in line]


async def test_verbose_log_is_turned_on_and_off(kserve, capfd):
    """The core logs each request while the level is above 0, and GET returns the level."""
    on = await set_log(kserve, log_verbose_level=1)
    verbose = await infer_log(kserve, capfd)
    off = await set_log(kserve, log_verbose_level=0)
    quiet = await infer_log(kserve, capfd)

    assert (on.json()["log_verbose_level"], off.json()["log_verbose_level"]) == (1, 0)
    assert verbose
    assert quiet == []
    assert (await kserve.client.get(PATH)).json() == off.json()


async def test_format_of_the_time(kserve, capfd):
    """Lines have a date in ISO 8601 after the change."""
    await set_log(kserve, log_verbose_level=1, log_format="ISO8601")

    lines = await infer_log(kserve, capfd)

    assert lines[0].startswith("20")


async def test_null_and_an_empty_body_change_nothing(kserve):
    """Triton's clients may send both; the response has all settings."""
    before = (await kserve.client.get(PATH)).json()

    null = await set_log(kserve, log_info=None, log_file=None)
    empty = await kserve.client.post(PATH)

    assert null.json() == empty.json() == before
    assert before.keys() == {
        "log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format",
    }  # fmt: skip


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "unknown key": ({"log_colour": True}, 400, "unknown log setting 'log_colour'"),
    "text for a boolean": ({"log_info": "true"}, 400, "'log_info' must be true or false"),
    "number for a boolean": ({"log_error": 1}, 400, "'log_error' must be true or false"),
    "boolean for a level": ({"log_verbose_level": True}, 400, "must be an integer from 0"),
    "negative level": ({"log_verbose_level": -1}, 400, "must be an integer from 0"),
    "level above 31 bits": ({"log_verbose_level": 2**31}, 400, "to 2147483647"),
    "format": ({"log_format": "json"}, 400, "'default' or 'ISO8601'"),
    "file": ({"log_file": "core.log"}, 501, "--triton-option log-file=PATH"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_refused_settings_change_nothing(kserve, case):
    """The error names the key, and valid settings beside it are not applied either."""
    settings, status, message = REFUSED[case]
    before = (await kserve.client.get(PATH)).json()

    response = await set_log(kserve, log_warning=not before["log_warning"], **settings)

    assert (response.status_code, list(response.json())) == (status, ["error"])
    assert message in response.json()["error"]
    assert (await kserve.client.get(PATH)).json() == before


async def test_grpc_changes_the_same_settings(kserve, capfd):
    """What a gRPC client sets is in force, and an HTTP client sees it."""
    async with rpc_client(kserve.app) as rpc:
        settings = {"log_verbose_level": {"uint32_param": 1}, "log_info": {"bool_param": True}}
        response = await rpc.ask("LogSettings", settings=settings)
        verbose = await infer_log(kserve, capfd)
        wrong = await rpc.refusal("LogSettings", settings={"log_info": {"uint32_param": 1}})

    assert response.settings["log_verbose_level"].uint32_param == 1
    assert response.settings["log_format"].string_param == "default"
    assert verbose
    assert (await kserve.client.get(PATH)).json()["log_info"] is True
    assert wrong == ("INVALID_ARGUMENT", "'log_info' must be true or false")


async def test_scope(kserve, tmp_path):
    """A key needs the scope `admin`, over HTTP and over gRPC."""
    keys = [key("free"), key("looks", scopes=frozenset({"models", "inference"}))]
    file = key_files.write(tmp_path / "keys.yaml", *keys)
    async with other_app(kserve, keys_file=file) as closed:
        statuses = [
            (await closed.client.post(PATH, json={}, headers=bearer(name))).status_code
            for name in ("free", "looks")
        ]
        async with rpc_client(closed.app, "looks", keys_file=file) as rpc:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await rpc.ask("LogSettings")

    assert statuses == [200, 403]
    assert error.value.code().name == "PERMISSION_DENIED"
