"""tritonclient's calls over HTTP and over gRPC, from one table; prints the results as JSON.

The rows follow NVIDIA's examples of the client. Each gets the module of a protocol and a client of
it, and returns the same for both.
"""

import asyncio
import json
import queue
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http
import tritonclient.http.aio as http_aio
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

FLOATS = np.array([1.5, -2, 0.25], np.float32)
Row = Callable[[ModuleType, Any], Any]


def an_input(module: ModuleType, name: str, array: Any, datatype: str) -> Any:
    made = module.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def shown(result: Any, name: str) -> list[Any]:
    return [each.decode() if isinstance(each, bytes) else each
            for each in result.as_numpy(name).flatten().tolist()]  # fmt: skip


def simple(module: ModuleType, client: Any) -> Any:
    """simple_*_infer_client: one tensor, a request id, a requested output."""
    result = client.infer(
        "one",
        [an_input(module, "IN", FLOATS, "FP32")],
        request_id="1",
        outputs=[module.InferRequestedOutput("IN_echo")],
        model_version="1",
    )
    return shown(result, "IN_echo")


def strings(module: ModuleType, client: Any) -> Any:
    """simple_*_string_infer_client."""
    texts = np.array([b"a", "\u00e9".encode(), b""], object)
    return shown(client.infer("all", [an_input(module, "BYTES", texts, "BYTES")]), "BYTES_echo")


def half(module: ModuleType, client: Any) -> Any:
    """A datatype that JSON lacks."""
    array = np.array([-1.5, 0, 65504], np.float16)
    return shown(client.infer("all", [an_input(module, "FP16", array, "FP16")]), "FP16_echo")


def classes(module: ModuleType, client: Any) -> Any:
    """image_client: the top classes of each batch entry."""
    array = np.array([[1, 2], [4, 3]], np.int32)
    wanted = module.InferRequestedOutput("IN_echo", class_count=2)
    result = client.infer("batched", [an_input(module, "IN", array, "INT32")], outputs=[wanted])
    return [shown(result, "IN_echo"), list(result.as_numpy("IN_echo").shape)]


def parameters(module: ModuleType, client: Any) -> Any:
    """Parameters of the request reach the model with their types."""
    custom = {"text": "x", "number": 7, "truth": True}
    result = client.infer("one", [an_input(module, "IN", FLOATS, "FP32")], parameters=custom)
    return json.loads(shown(result, "parameters")[0])


def asynchronous(module: ModuleType, client: Any) -> Any:
    """simple_*_async_infer_client: several requests at a time."""
    inputs = [an_input(module, "IN", FLOATS, "FP32")]
    if module is http:
        results = [client.async_infer("one", inputs) for _ in range(4)]
        return [shown(each.get_result(), "IN_echo") for each in results]
    answers: queue.Queue[Any] = queue.Queue()
    for _ in range(4):
        client.async_infer("one", inputs, lambda result, error: answers.put(result or error))
    return [shown(answers.get(timeout=30), "IN_echo") for _ in range(4)]


def health(module: ModuleType, client: Any) -> Any:
    """simple_*_health_metadata: the server and its models."""
    return [client.is_server_live(), client.is_server_ready(), client.is_model_ready("one"),
            client.is_model_ready("absent"), client.is_model_ready("one", "7")]  # fmt: skip


def metadata(module: ModuleType, client: Any) -> Any:
    """Metadata and config; gRPC's JSON has text for integers of 64 bits."""
    as_json = {} if module is http else {"as_json": True}
    described = client.get_model_metadata("one", **as_json)
    config = client.get_model_config("batched", **as_json)
    config = config if module is http else config["config"]
    server = client.get_server_metadata(**as_json)
    inputs = [[each["name"], each["datatype"], [int(size) for size in each["shape"]]]
              for each in described["inputs"]]  # fmt: skip
    extensions = sorted(set(server["extensions"]) - {"generate"})
    return [inputs, described["versions"], described["platform"], config["max_batch_size"],
            config["backend"], server["version"], extensions]  # fmt: skip


def control(module: ModuleType, client: Any) -> Any:
    """simple_*_model_control: unload, load, and load with a config and a file."""
    as_json = {} if module is http else {"as_json": True}
    client.unload_model("text")
    unloaded = client.is_model_ready("text")
    client.load_model("text")
    index = client.get_model_repository_index(**as_json)
    models = index if module is http else index["models"]
    found = [each for each in models if each["name"] == "text"]
    return [unloaded, client.is_model_ready("text"), found[0]["state"]]


def override(module: ModuleType, client: Any) -> Any:
    """A config and a file of the request replace the repository's."""
    config = {"backend": "inprocess", "input": [{"name": "NEW", "data_type": "TYPE_INT8",
                                                 "dims": [1]}]}  # fmt: skip
    client.load_model("text", config=json.dumps(config), files={"file:1/x.txt": b"x"})
    as_json = {} if module is http else {"as_json": True}
    name = client.get_model_metadata("text", **as_json)["inputs"][0]["name"]
    client.load_model("text")
    return name


def statistics(module: ModuleType, client: Any) -> Any:
    as_json = {} if module is http else {"as_json": True}
    found = client.get_inference_statistics("one", **as_json)["model_stats"][0]
    return [found["name"], int(found["inference_stats"]["success"]["count"]) > 0]


def sequences(module: ModuleType, client: Any) -> Any:
    """simple_*_sequence_sync_infer_client: two sequences side by side, with ids of both types."""
    sums = []
    for number, place in ((1, "start"), (2, ""), (3, "end")):
        for model, id in (("sums", 1007), ("sums_by_name", "mine")):
            array = np.array([[number]], np.int32)
            result = client.infer(
                model,
                [an_input(module, "IN", array, "INT32")],
                sequence_id=id,
                sequence_start=place == "start",
                sequence_end=place == "end",
            )
            sums.append(int(result.as_numpy("OUT").flatten()[0]))
    return sums


def shared_memory(module: ModuleType, client: Any) -> Any:
    """simple_*_shm_client: tensors in and out of two regions, and their status."""
    name = f"protocols_{module.__name__.rpartition('.')[2]}"
    inputs = shm.create_shared_memory_region(f"{name}_in", f"/{name}_in", FLOATS.nbytes)
    outputs = shm.create_shared_memory_region(f"{name}_out", f"/{name}_out", FLOATS.nbytes)
    try:
        shm.set_shared_memory_region(inputs, [FLOATS])
        client.register_system_shared_memory(f"{name}_in", f"/{name}_in", FLOATS.nbytes)
        client.register_system_shared_memory(f"{name}_out", f"/{name}_out", FLOATS.nbytes)
        sent = module.InferInput("IN", [3], "FP32")
        sent.set_shared_memory(f"{name}_in", FLOATS.nbytes)
        wanted = module.InferRequestedOutput("IN_echo")
        wanted.set_shared_memory(f"{name}_out", FLOATS.nbytes)
        result = client.infer("one", [sent], outputs=[wanted])
        as_json = {} if module is http else {"as_json": True}
        status = client.get_system_shared_memory_status(**as_json)
        regions = status if module is http else status["regions"].values()
        client.unregister_system_shared_memory()
        echoed = shm.get_contents_as_numpy(outputs, np.float32, [3])
        output = result.get_output("IN_echo")
        shape = output["shape"] if module is http else [*output.shape]
        sizes = sorted(int(each["byte_size"]) for each in regions)
        return [echoed.tolist(), shape, sizes]
    finally:
        shm.destroy_shared_memory_region(inputs)
        shm.destroy_shared_memory_region(outputs)


def log_settings(module: ModuleType, client: Any) -> Any:
    """Log settings change at run time, and back."""
    as_json = {} if module is http else {"as_json": True}

    def level(settings: Any) -> int:
        found = settings if module is http else settings["settings"]
        value = found["log_verbose_level"]
        return int(value if module is http else value["uint32_param"])

    changed = level(client.update_log_settings({"log_verbose_level": 1}, **as_json))
    client.update_log_settings({"log_verbose_level": 0})
    return [changed, level(client.get_log_settings(**as_json))]


def compressed(module: ModuleType, client: Any) -> Any:
    """Compressed requests and responses."""
    inputs = [an_input(module, "IN", FLOATS, "FP32")]
    if module is http:
        ways = {
            "request_compression_algorithm": "gzip",
            "response_compression_algorithm": "deflate",
        }
    else:
        ways = {"compression_algorithm": "gzip"}
    return shown(client.infer("one", inputs, **ways), "IN_echo")


def refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except InferenceServerException as error:
        return str(error.message())
    return "no error"


def errors(module: ModuleType, client: Any) -> Any:
    """The same messages for the same mistakes."""
    one = [an_input(module, "IN", FLOATS, "FP32")]
    wrong = [an_input(module, "X", FLOATS, "FP32")]
    return [
        refusal(lambda: client.infer("absent", one)),
        refusal(lambda: client.infer("one", wrong)),
        refusal(lambda: client.infer("one", one, parameters={"triton_x": 1})),
        refusal(lambda: client.infer("one", one, model_version="x")),
        refusal(lambda: client.get_model_config("absent")),
        refusal(lambda: client.load_model("absent")),
    ]


ROWS: tuple[Row, ...] = (
    simple, strings, half, classes, parameters, asynchronous, health, metadata, control, override,
    statistics, errors, sequences, shared_memory, log_settings, compressed,
)  # fmt: skip


async def by_asyncio(module: ModuleType, client_of: ModuleType, address: str) -> Any:
    """The clients for asyncio."""
    async with client_of.InferenceServerClient(address) as client:
        result = await client.infer("one", [an_input(module, "IN", FLOATS, "FP32")])
        return [shown(result, "IN_echo"), await client.is_server_ready()]


def decoupled(client: grpc.InferenceServerClient) -> Any:
    """simple_grpc_custom_repeat: several responses to a request, and its end."""
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put(result or error))
    parts = np.array([b"61", b"62"], object)
    client.async_stream_infer(
        "ended",
        [an_input(grpc, "IN", parts, "BYTES")],
        request_id="5",
        enable_empty_final_response=True,
    )
    found: list[Any] = []
    while True:
        response = answers.get(timeout=30).get_response()
        found.append([response.id, len(response.outputs)])
        if response.parameters["triton_final_response"].bool_param:
            break
    client.async_stream_infer("absent", [an_input(grpc, "IN", parts, "BYTES")])
    error = answers.get(timeout=30)
    client.stop_stream()
    return [found, error.message()]


def main(http_address: str, grpc_address: str) -> dict[str, Any]:
    clients = {
        http: http.InferenceServerClient(http_address, concurrency=4),
        grpc: grpc.InferenceServerClient(grpc_address),
    }
    results: dict[str, Any] = {
        row.__name__: [row(module, client) for module, client in clients.items()] for row in ROWS
    }
    results["by_asyncio"] = [
        asyncio.run(by_asyncio(http, http_aio, http_address)),
        asyncio.run(by_asyncio(grpc, grpc_aio, grpc_address)),
    ]
    results["decoupled"] = decoupled(clients[grpc])
    return results


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])))
