"""POST /v2/repository/...: the index, and loading and unloading if the operator enables them."""

import base64
import json

import pytest

from tests.api.kserve.conftest import other_app

pytestmark = pytest.mark.asyncio(loop_scope="package")

ECHO = {"backend": "inprocess",
        "input": [{"name": "SENT", "data_type": "TYPE_INT8", "dims": [1]}]}  # fmt: skip


async def states(kserve):
    index = (await kserve.client.post("/v2/repository/index")).json()
    return {entry["name"]: entry.get("state") for entry in index}


async def control(kserve, model, action, **body):
    return await kserve.client.post(f"/v2/repository/models/{model}/{action}", json=body)


async def test_unload_and_load(kserve):
    """The response waits until the model is unloaded or loaded, and the index shows it."""
    gone = await control(kserve, "batched", "unload", parameters={"unload_dependents": False})
    without = await states(kserve)
    ready = (await kserve.client.post("/v2/repository/index", json={"ready": True})).json()
    back = await control(kserve, "batched", "load")

    assert (gone.status_code, back.status_code) == (200, 200), back.text
    assert without["batched"] != "READY"
    assert "batched" not in [entry["name"] for entry in ready]
    assert (await states(kserve))["batched"] == "READY"


async def test_load_with_a_config_and_files(kserve):
    """The client's config and files override the repository's until the model is loaded again."""
    file = {"file:1/none": base64.b64encode(b"x").decode()}

    loaded = await control(kserve, "text", "load", parameters={"config": json.dumps(ECHO), **file})
    inputs = (await kserve.client.get("/v2/models/text")).json()["inputs"]
    await control(kserve, "text", "unload")
    await control(kserve, "text", "load")

    assert loaded.status_code == 200, loaded.text
    assert [tensor["name"] for tensor in inputs] == ["SENT"]
    assert (await kserve.client.get("/v2/models/text")).json()["inputs"][0]["name"] == "IN"


@pytest.mark.parametrize("model", ["nobody", "..", "..%2f..%2fetc", "a%00b", "x" * 300])
@pytest.mark.parametrize("action", ["load", "unload"])
async def test_invalid_model_names(kserve, model, action):
    """No file is looked up for a name that cannot be a model."""
    response = await kserve.client.post(f"/v2/repository/models/{model}/{action}")

    assert response.status_code in (400, 404)
    assert list(response.json()) == ["error"]


FILES = ["../x", "/etc/passwd", "1/../../x", "", "1//x", "a\\b", ".hidden", "1/\0", "1/" * 20 + "x"]


@pytest.mark.parametrize("path", FILES)
async def test_files_outside_the_model_are_rejected(kserve, path):
    """A file outside of the model's folder is rejected with its name."""
    files = {f"file:{path}": base64.b64encode(b"x").decode()}

    response = await control(
        kserve, "text", "load", parameters={"config": json.dumps(ECHO), **files}
    )

    assert (response.status_code, "file:" in response.json()["error"]) == (400, True)


@pytest.mark.parametrize(
    "parameters",
    [{"other": "x"}, {"config": 7}, {"config": "{}", "file:1/x": "%"}, {"file:1/x": ""}],
)
async def test_invalid_parameters(kserve, parameters):
    """Unsupported parameters are rejected before anything is loaded."""
    response = await control(kserve, "text", "load", parameters=parameters)

    assert response.status_code == 400, response.text
    assert (await states(kserve))["text"] == "READY"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("{", "not valid JSON: "),
        ("[" * 5000, "not valid JSON: "),
        ("[]", "not the configuration"),
        ('{"backend": 7}', "not the configuration"),
        ('{"nothing": 1}', "not the configuration"),
    ],
)
async def test_unreadable_config(kserve, config, reason):
    """The client's mistake is a 400 that names the parameter, and the model keeps serving."""
    response = await control(kserve, "text", "load", parameters={"config": config})

    assert response.status_code == 400
    assert f"parameter 'config': {reason}" in response.json()["error"]
    assert (await states(kserve))["text"] == "READY"


async def test_config_with_which_the_model_does_not_load(kserve):
    """A failed load reports its reason, and the model keeps serving as before."""
    response = await control(
        kserve, "text", "load", parameters={"config": json.dumps({"backend": "nobody"})}
    )

    assert (response.status_code, "'nobody'" in response.json()["error"]) == (503, True)
    assert (await states(kserve))["text"] == "READY"


@pytest.mark.parametrize("action", ["load", "unload"])
async def test_management_is_disabled_by_default(kserve, action):
    """Without `enable_model_management`, changes are rejected with the option's name."""
    async with other_app(kserve, allow_model_override=True) as off:
        response = await control(off, "text", action)

    assert (response.status_code, "enable_model_management" in response.text) == (403, True)


async def test_override_is_disabled_by_default(kserve):
    """Without `allow_model_override`, a client can load from the repository but send no files."""
    sent = {"config": json.dumps(ECHO)}
    async with other_app(kserve, enable_model_management=True) as off:
        response = await control(off, "text", "load", parameters=sent)

    assert (response.status_code, "allow_model_override" in response.text) == (403, True)


async def test_named_repository(kserve):
    """The index of a named repository is that of all of them, as Triton's; its models cannot be
    loaded.
    """
    index = (await kserve.client.post("/v2/repository/index")).json()
    named = await kserve.client.post("/v2/repository/mine/index")
    ready = await kserve.client.post("/v2/repository/mine/index", json={"ready": True})
    load = await kserve.client.post("/v2/repository/mine/models/one/load")

    assert named.json() == index
    assert {entry["state"] for entry in ready.json()} == {"READY"}
    assert (load.status_code, load.json()) == (
        501, {"error": "'repository_name' specification is not supported"},
    )  # fmt: skip
