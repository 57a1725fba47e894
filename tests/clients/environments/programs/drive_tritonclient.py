"""tritonclient's calls over HTTP; prints the results as JSON."""

import asyncio
import base64
import json
import sys
from typing import Any

import numpy as np
import tritonclient.http as http
import tritonclient.http.aio as aio
from tritonclient.utils import InferenceServerException

SIZES = (8, 16, 32, 64)
ARRAYS: dict[str, Any] = {
    "BOOL": np.array([True, False, True]),
    **{f"UINT{bits}": np.array([0, 1, 2**bits - 1], f"u{bits // 8}") for bits in SIZES},
    **{f"INT{bits}": np.array([-(2**bits // 2), 0, 7], f"i{bits // 8}") for bits in SIZES},
    "FP16": np.array([-1.5, 0, 65504], "f2"),
    "BF16": np.array([-1.5, 0, 2.0**100], "f4"),
    "FP32": np.array([-1.5, 0, 2.0**100], "f4"),
    "FP64": np.array([-1.5, 0, 2.0**1000], "f8"),
    "BYTES": np.array([b"", "é".encode(), b"\0\xff"], object),
}
IN_JSON = [name for name in ARRAYS if name not in ("FP16", "BF16", "BYTES")]


def inputs(names: list[str], *, binary: bool) -> list[http.InferInput]:
    made = []
    for name in names:
        made.append(http.InferInput(name, [3], name))
        made[-1].set_data_from_numpy(ARRAYS[name], binary_data=binary)
    return made


def outputs(names: list[str], *, binary: bool) -> list[http.InferRequestedOutput]:
    return [http.InferRequestedOutput(f"{name}_echo", binary_data=binary) for name in names]


def raw(result: http.InferResult, name: str) -> str:
    """An output's bytes, as the client returns them."""
    array = result.as_numpy(f"{name}_echo")
    if name == "BYTES":
        data = b"".join(len(each).to_bytes(4, "little") + each for each in array.tolist())
    elif name == "BF16":
        data = (array.astype("f4").view("u4") >> 16).astype("u2").tobytes()
    else:
        data = array.tobytes()
    return base64.b64encode(data).decode()


def everything(client: http.InferenceServerClient) -> dict[str, Any]:
    names = list(ARRAYS)
    binary = client.infer("all", inputs(names, binary=True), request_id="7",
                          outputs=outputs(names, binary=True))  # fmt: skip
    unnamed = client.infer("all", inputs(names, binary=True))
    text = client.infer(
        "all", inputs(IN_JSON, binary=False), outputs=outputs(IN_JSON, binary=False)
    )
    later = client.async_infer("all", inputs(["INT32"], binary=True)).get_result()
    return {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "model_ready": [client.is_model_ready(name) for name in ("all", "nobody")],
        "server": client.get_server_metadata(),
        "metadata": client.get_model_metadata("all", "1"),
        "config": client.get_model_config("all"),
        "statistics": client.get_inference_statistics("all"),
        "index": client.get_model_repository_index(),
        "log": client.get_log_settings(),
        "id": binary.get_response()["id"],
        "binary": {name: raw(binary, name) for name in names},
        "unnamed": {name: raw(unnamed, name) for name in names},
        "json": {name: raw(text, name) for name in IN_JSON},
        "later": raw(later, "INT32"),
    }


def batched(client: http.InferenceServerClient) -> list[Any]:
    """A batch with classification: its top classes instead of the tensor."""
    pair = http.InferInput("IN", [2, 2], "INT32")
    pair.set_data_from_numpy(np.array([[1, 2], [4, 3]], "i4"))
    best = http.InferRequestedOutput("IN_echo", class_count=1)
    options = {"priority": 1, "timeout": 10**9, "parameters": {"mine": 3}}
    result = client.infer("batched", [pair], outputs=[best], **options)
    return [each.decode() for each in result.as_numpy("IN_echo").ravel().tolist()]


def generated(client: http.InferenceServerClient) -> dict[str, Any]:
    """The client has no method for it, so its connection is used directly."""
    body = json.dumps({"text_input": "hi there", "parameters": {"temperature": 0}})
    response = client._post("v2/models/mock/generate", body, None, None)
    answer: dict[str, Any] = json.loads(response.read())
    return answer


def managed(client: http.InferenceServerClient) -> list[Any]:
    config = {"backend": "inprocess",
              "input": [{"name": "SENT", "data_type": "TYPE_INT8", "dims": [1]}]}  # fmt: skip
    client.unload_model("text")
    gone = client.is_model_ready("text")
    client.load_model("text", config=json.dumps(config), files={"file:1/none": b"x"})
    sent = client.get_model_metadata("text")["inputs"][0]["name"]
    client.unload_model("text")
    client.load_model("text")
    return [gone, sent, client.get_model_metadata("text")["inputs"][0]["name"]]


def failures(client: http.InferenceServerClient) -> dict[str, str]:
    """The exceptions of the client: the server's status and message."""
    wrong = http.InferInput("IN", [1], "FP32")
    wrong.set_data_from_numpy(np.array([1], "f4"))
    calls = {
        "nobody": lambda: client.infer("nobody", [wrong]),
        "datatype": lambda: client.infer("batched", [wrong]),
        "version": lambda: client.get_model_metadata("all", "9"),
        "shared_memory": lambda: client.get_system_shared_memory_status(),
        "load": lambda: client.load_model("nobody"),
    }
    told = {}
    for name, call in calls.items():
        try:
            call()
        except InferenceServerException as error:
            told[name] = f"{error.status()} {error.message()}"
    return told


async def with_aio(url: str) -> str:
    async with aio.InferenceServerClient(url) as client:
        made = inputs(["INT32"], binary=True)
        return raw(await client.infer("all", made), "INT32")


def main(url: str) -> None:
    with http.InferenceServerClient(url) as client:
        told = {
            **everything(client),
            "batched": batched(client),
            "generated": generated(client),
            "managed": managed(client),
            "failures": failures(client),
        }
    sys.stdout.write(json.dumps({**told, "aio": asyncio.run(with_aio(url))}))


main(sys.argv[1])
