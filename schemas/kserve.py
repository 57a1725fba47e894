"""The KServe v2 predict protocol with Triton's extensions: bodies of requests and responses.

https://github.com/kserve/open-inference-protocol, and docs/protocol of Triton's server
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from schemas.json_value import JSONObject
from schemas.sampling import RequestFields

Parameters = dict[str, Any]  # of strings, numbers and booleans
# gRPC's messages have these limits too
MAX_TENSORS, MAX_DIMENSIONS = 1024, 64
MAX_NAME_CHARACTERS, MAX_ID_CHARACTERS = 1024, 4096

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARACTERS, pattern=r"^[^\x00]*$")]
Size = Annotated[int, Field(ge=0, le=2**63 - 1)]
Shape = Annotated[list[Size], Field(max_length=MAX_DIMENSIONS)]
Text = Annotated[str, Field(max_length=MAX_ID_CHARACTERS, pattern=r"^[^\x00]*$")]


class RegionParameters(RequestFields):
    """The place of a tensor in a region of shared memory."""

    shared_memory_region: Name | None = None
    shared_memory_offset: Size | None = None
    shared_memory_byte_size: Size | None = None


class InputParameters(RegionParameters):
    """How an input's data is sent: as bytes after the JSON, or in shared memory."""

    binary_data_size: Size | None = None


class RequestInput(RequestFields):
    """One input tensor: flat or nested `data`, or `binary_data_size` bytes after the JSON."""

    name: Name
    shape: Shape
    datatype: str
    parameters: InputParameters | None = None
    data: Any = None


class OutputParameters(RegionParameters):
    """How an output is returned."""

    binary_data: bool | None = None
    classification: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None


class RequestOutput(RequestFields):
    """One requested output."""

    name: Name
    parameters: OutputParameters | None = None


class InferRequest(RequestFields):
    """POST /v2/models/{model}/infer."""

    id: Text | None = None
    parameters: JSONObject | None = None
    inputs: Annotated[list[RequestInput], Field(max_length=MAX_TENSORS)]  # each may be optional
    outputs: Annotated[list[RequestOutput], Field(max_length=MAX_TENSORS)] | None = None


class ResponseOutput(BaseModel):
    """One output: its data, or the number of its bytes after the JSON."""

    name: str
    datatype: str
    shape: list[int]
    parameters: Parameters | None = None
    data: list[Any] | None = None


class InferResponse(BaseModel):
    """The response to an inference request."""

    id: str | None = None
    model_name: str
    model_version: str
    parameters: Parameters | None = None
    outputs: list[ResponseOutput]


class GenerateRequest(RequestFields):
    """POST /v2/models/{model}/generate: also the model's inputs and parameters by name."""

    id: Text | None = None
    parameters: JSONObject | None = None


class GenerateResponse(BaseModel):
    """One response: also the model's outputs by name, such as `text_output`."""

    model_config = ConfigDict(extra="allow")

    id: str | None = None
    model_name: str
    model_version: str


class SettingsUpdate(RequestFields):
    """POST /v2/logging and /v2/trace/setting: the keys of the extension and their new values."""


class IndexRequest(RequestFields):
    """POST /v2/repository/index."""

    ready: bool = False


class IndexEntry(BaseModel):
    """A version of a model; only the name if the model was never loaded."""

    name: str
    version: str | None = None
    state: str | None = None
    reason: str | None = None


class LoadRequest(RequestFields):
    """POST /v2/repository/models/{model}/load.

    `parameters`: `config`, a model config as JSON text, and `file:<path>`, a file in base64.
    """

    parameters: dict[str, str] | None = None


class UnloadParameters(RequestFields):
    """The parameters of an unload."""

    unload_dependents: bool | None = None


class UnloadRequest(RequestFields):
    """POST /v2/repository/models/{model}/unload."""

    parameters: UnloadParameters | None = None


class RegisterRequest(RequestFields):
    """POST /v2/systemsharedmemory/region/{name}/register."""

    key: Annotated[str, Field(max_length=1024)]  # a name of POSIX shared memory
    offset: Size = 0  # bytes
    byte_size: Size


class ServerMetadata(BaseModel):
    """GET /v2."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(BaseModel):
    """An input or output of a model; -1 is a dimension of any size."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    """GET /v2/models/{model}."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class KServeError(BaseModel):
    """The body of every error response."""

    error: str
