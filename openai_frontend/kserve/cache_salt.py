"""The cache salt among a client's tensors, which must not equal the salt of another owner."""

from math import prod

from openai_frontend.kserve.datatypes import BYTES, TensorInput, reject
from openai_frontend.kserve.models import Core, ModelAddress
from openai_frontend.prefix_cache.salts import CacheSalts
from schemas.sampling import MAX_CACHE_SALT_CHARACTERS

_NAME = "cache_salt"
_LENGTH_BYTES = 4  # before a BYTES element


def salted(
    inputs: dict[str, TensorInput], core: Core, model: ModelAddress, salts: CacheSalts
) -> dict[str, TensorInput]:
    """The inputs with the salt that an engine in this process gets of the client's.

    Other backends may mean something else by the name. Raises InvalidRequest.
    """
    if _NAME not in inputs:
        return inputs
    if core.model_config(model.name, model.version).get("backend") != "inprocess":
        return inputs
    datatype, shape, data = inputs[_NAME]
    if datatype != BYTES.name or prod(shape) != 1:
        reject(_NAME, "must be one element of BYTES")
    try:
        requested = bytes(data[_LENGTH_BYTES:]).decode()
    except UnicodeDecodeError:
        reject(_NAME, "is not UTF-8")
    if len(requested) > MAX_CACHE_SALT_CHARACTERS:
        reject(_NAME, f"at most {MAX_CACHE_SALT_CHARACTERS} characters, not {len(requested)}")
    salt = (salts.salt(requested) or "").encode()
    return {**inputs, _NAME: (datatype, shape, len(salt).to_bytes(_LENGTH_BYTES, "little") + salt)}
