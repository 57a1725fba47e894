"""POST generate and generate_stream: the model's inputs and outputs as members of JSON objects."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from openai_frontend import sse
from openai_frontend.contracts.kserve import generate, output
from openai_frontend.contracts.kserve.datatypes import TensorInput
from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.kserve import work
from openai_frontend.serving.kserve.addresses import ModelAddress
from openai_frontend.serving.kserve.at_work import AtWork
from openai_frontend.serving.kserve.core import Core, Response, Responses
from openai_frontend.serving.kserve.inference import response_head
from openai_frontend.serving.kserve.options import RequestOptions, read_options
from openai_frontend.serving.request.request_body import BodyReader
from schemas.kserve import GenerateRequest

NOT_ONE = (
    "generate is for models that give exactly one response to a request, and this one gave {}: "
    "use generate_stream"
)


@dataclass(frozen=True, slots=True)
class Generation:
    """A request as it goes to the core."""

    inputs: dict[str, TensorInput]
    id: str | None
    options: RequestOptions


class GenerateRequests:
    """Answers generate requests; the streaming ones with the events of a stream."""

    def __init__(self, core: Core, at_work: AtWork) -> None:
        self._core = core
        self._at_work = at_work
        self._reader = BodyReader(GenerateRequest)

    async def create(
        self, model: ModelAddress, body: bytes, request_id: str, *, key: str = ""
    ) -> bytes:
        """The one response, as JSON. `key`: the digest of who asks."""
        documents: list[bytes] = []
        async with aclosing(self._documents(model, body, request_id, key)) as bursts:
            async for burst in bursts:
                documents += burst
                if len(documents) > 1:  # the rest of a stream would be for nobody
                    raise InvalidRequest(NOT_ONE.format("more"))
        if not documents:
            raise InvalidRequest(NOT_ONE.format("none"))
        return documents[0]

    async def stream(
        self, model: ModelAddress, body: bytes, request_id: str, *, key: str = ""
    ) -> AsyncGenerator[bytes, None]:
        """Events, all that one wake-up brought together. What it raises comes after them."""
        async with aclosing(self._documents(model, body, request_id, key)) as bursts:
            async for burst in bursts:
                if burst:
                    yield b"".join(map(sse.event, burst))

    async def _documents(
        self, model: ModelAddress, body: bytes, request_id: str, key: str
    ) -> AsyncGenerator[list[bytes], None]:
        """Closing it ends the request in the core."""
        async with self._at_work.on(model, key):
            metadata = self._core.model_metadata(model.name, model.version)
            generation = await work.done(
                partial(self._read, body, metadata["inputs"]), byte_size=len(body)
            )
            head = response_head(self._core, model, generation.id)
            async with self._at_work.place(model, key, generation.options) as options:
                responses = self._sent(model, replace(generation, options=options), request_id)
                try:
                    async for burst in responses:
                        said = [each for each in burst if _says_something(each)]
                        yield [await _written(head, each) for each in said]
                finally:
                    responses.cancel()

    def _read(self, body: bytes, declared: Sequence[Mapping[str, Any]]) -> Generation:
        request = self._reader.read_in_thread(body)
        fields = dict(request.model_extra or {})
        if request.parameters is not None:
            fields[generate.NESTED] = request.parameters
        read = generate.read(fields, declared)
        return Generation(read.inputs, request.id, read_options(read.parameters))

    def _sent(self, model: ModelAddress, generation: Generation, request_id: str) -> Responses:
        return self._core.infer(
            model.name,
            generation.inputs,
            version=model.version,
            request_id=generation.id or request_id,
            priority=generation.options.priority,
            timeout_us=generation.options.timeout_us,
            parameters=generation.options.custom,
        )


def _says_something(response: Response) -> bool:
    """A decoupled model may end with a response that only says that it is the last."""
    return bool(response.names or response.parameters or not response.final)


async def _written(head: Mapping[str, Any], response: Response) -> bytes:
    outputs = [output.read(response.tensor(name)) for name in response.names]
    write = partial(generate.written, head, outputs, response.parameters)
    return await work.done(write, byte_size=sum(each.data.nbytes for each in outputs))
