"""Has prompts computed by prefill servers, and answers by itself whenever that fails.

vLLM reads any KV cache that a request names (docs/decisions/0024-disaggregation.md). So a transfer
is used only for the prompt, adapter and cache salt for which it was made, and only in the first
half of its lease.
"""

import asyncio
import hashlib
import json
import logging
from array import array
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import replace
from time import monotonic_ns
from typing import Any, Protocol

from openai_frontend.errors import GatewayError, InvalidRequest, ModelUnavailable
from openai_frontend.generation import CompletionDelta, GenerationRequest, KVTransfer
from openai_frontend.metrics.gateway import PrefillMetrics
from openai_frontend.model_facts import KVTransferFacts, ModelFacts
from openai_frontend.models.prefill_peers import PrefillFailed, PrefillPeer, PrefillPeers
from openai_frontend.prefix_cache.blocks import PrefixCache
from openai_frontend.request_context.context import current
from schemas.transfer import PrefillRequest, PrefillResponse

logger = logging.getLogger(__name__)

Bursts = AsyncGenerator[list[CompletionDelta], None]

# An answer that a server has sent arrives within this time after its request has ended.
_ON_ITS_WAY_S = 0.25

# kv_role of an engine -> whether it can do what a server of this role needs
_KV_ROLES = {
    "prefill": ("kv_producer", "kv_both"),
    "decode": ("kv_consumer", "kv_both"),
}


def role_problem(role: str, transfer: KVTransferFacts | None) -> str | None:
    """Why a model cannot serve in a server of this role, and what to do; None if it can.

    `transfer`: None if its engine exchanges no KV caches.
    """
    if role not in _KV_ROLES:
        return None
    able = _KV_ROLES[role]
    wanted = f'{{"kv_connector": "NixlConnector", "kv_role": "{able[0]}"}}'
    if transfer is None:
        return f"role {role} needs kv_transfer_config in model.json, such as {wanted}"
    if transfer.role not in able:
        return (
            f"role {role} does not work with the kv_role '{transfer.role}' of"
            f" kv_transfer_config; set it to {' or '.join(able)}"
        )
    if role == "decode" and not transfer.recomputes:
        return (
            "role decode needs kv_load_failure_policy recompute in kv_transfer_config, or a failed"
            " transfer would fail the request; set it to recompute, or remove it"
        )
    return None


def prompt_digest(
    token_ids: Sequence[int], *, model: str, adapter: str | None, cache_salt: str | None
) -> str:
    """Identifies a prompt with all that its KV cache depends on. SHA-256, in hexadecimal."""
    beside = json.dumps([model, adapter, cache_salt]).encode()
    return hashlib.sha256(beside + b"\x00" + array("q", token_ids).tobytes()).hexdigest()


class RemotePrefill:
    """Decides for each request of one server whether a prefill server computes its prompt."""

    def __init__(self, peers: PrefillPeers, metrics: PrefillMetrics, *, min_tokens: int) -> None:
        self._peers = peers
        self._metrics = metrics
        self._min_tokens = min_tokens
        self._caches: dict[str, PrefixCache] = {}  # by model
        self._rejections: set[asyncio.Task[None]] = set()

    async def generate(self, model: "TransferringModel", request: GenerationRequest) -> Bursts:
        """Generate with the prompt computed elsewhere, or else here."""
        try:
            transfer = await self._prefill(model, request)
        except PrefillFailed as failed:
            self._metrics.local(model.model_name, str(failed))
            transfer = None
        if transfer is None:
            bursts = model.generate_here(request)
        else:
            bursts = self._transferred(model, replace(request, kv_transfer=transfer))
        begun = False
        async with aclosing(bursts):
            async for burst in bursts:
                if not begun:
                    begun = True
                    self._remember(model, request)
                yield burst

    async def _transferred(self, model: "TransferringModel", request: GenerationRequest) -> Bursts:
        """Start again without the transfer if the engine fails before the first output."""
        begun = False
        try:
            async with aclosing(model.generate_here(request)) as bursts:
                async for burst in bursts:
                    begun = True
                    yield burst
            self._metrics.finished(model.model_name, request.usage.transferred_tokens)
            return
        except GatewayError as error:
            if begun or isinstance(error, InvalidRequest | ModelUnavailable):
                raise
            self._metrics.local(model.model_name, "engine_failed")
        async with aclosing(model.generate_here(replace(request, kv_transfer=None))) as bursts:
            async for burst in bursts:
                yield burst

    async def _prefill(
        self, model: "TransferringModel", request: GenerationRequest
    ) -> KVTransfer | None:
        """None if there is no reason to ask. Raises PrefillFailed."""
        token_ids = request.prompt_token_ids
        everything = request.sampling_params.prompt_logprobs is not None  # vLLM computes each token
        media = request.images or request.audio_files  # not sent along
        if token_ids is None or media or everything:
            raise PrefillFailed("unsupported")
        uncached = len(token_ids) - self._cache(model).find(token_ids, owner=_owner(request))
        if uncached < self._min_tokens:
            raise PrefillFailed("short")
        context = current.get(None)
        peer = self._peers.choose(None if context is None else context.prefill_peer)
        if peer is None:
            raise PrefillFailed("no_peer")
        adapter = None if request.adapter is None else request.adapter.name
        prefill_request = PrefillRequest.model_construct(
            model=model.model_name,
            prompt_token_ids=list(token_ids),
            adapter=adapter,
            cache_salt=request.cache_salt,
            priority=request.priority,
        )
        sent_ns = monotonic_ns()
        response = await self._answer(model, peer, prefill_request)
        # The lease began when the prompt had been computed. Both times are durations: the clocks
        # differ. What the request and the reply took on the way shortens the lease.
        expires_ns = sent_ns + int((response.prefill_s + response.lease_s / 2) * 1e9)
        _check_digest(prefill_request, response)
        transfer = KVTransfer(params=response.kv_transfer_params, expires_ns=expires_ns)
        try:
            await peer.reach(*_side_channel(response))
        except asyncio.CancelledError:
            self._reject(model, transfer)
            raise
        return transfer

    async def _answer(
        self, model: "TransferringModel", peer: PrefillPeer, prefill_request: PrefillRequest
    ) -> PrefillResponse:
        """Raises PrefillFailed. An answer that comes too late for its request is rejected."""
        prefill = asyncio.get_running_loop().create_task(self._peers.prefill(peer, prefill_request))
        try:
            await asyncio.wait({prefill}, timeout=self._peers.timeout_s)
        except asyncio.CancelledError:
            self._in_background(self._abandon(model, prefill_request, prefill))
            raise
        if not prefill.done():
            self._in_background(self._abandon(model, prefill_request, prefill))
            raise PrefillFailed("peer_timeout")
        return prefill.result()

    async def _abandon(
        self,
        model: "TransferringModel",
        prefill_request: PrefillRequest,
        prefill: "asyncio.Task[PrefillResponse]",
    ) -> None:
        """Reject an answer that is on its way. Without one, closing the connection stops it."""
        await asyncio.wait({prefill}, timeout=_ON_ITS_WAY_S)
        prefill.cancel()
        try:
            response = await prefill
            _check_digest(prefill_request, response)
            _side_channel(response)
        except (asyncio.CancelledError, PrefillFailed):
            return
        await model.reject_transfer(KVTransfer(params=response.kv_transfer_params, rejected=True))

    def _reject(self, model: "TransferringModel", transfer: KVTransfer) -> None:
        """The request ends before its engine has the transfer: free the other engine's blocks."""
        self._in_background(model.reject_transfer(replace(transfer, rejected=True)))

    def _in_background(self, rejection: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(rejection)
        self._rejections.add(task)
        task.add_done_callback(self._rejections.discard)

    def _remember(self, model: "TransferringModel", request: GenerationRequest) -> None:
        media = request.images or request.audio_files
        if request.prompt_token_ids is not None and not media:
            self._cache(model).add(request.prompt_token_ids, owner=_owner(request))

    def _cache(self, model: "TransferringModel") -> PrefixCache:
        cache = self._caches.get(model.model_name)
        if cache is None:
            if (facts := model.facts.kv_transfer) is None:
                raise RuntimeError(f"the engine of model {model.model_name} exchanges no KV caches")
            cache = PrefixCache(blocks=facts.blocks, block_size=facts.block_size)
            self._caches[model.model_name] = cache
        return cache


class TransferringModel(Protocol):
    """The methods of a served model that this module needs; `ServedModel` documents them."""

    @property
    def model_name(self) -> str: ...
    @property
    def facts(self) -> ModelFacts: ...
    def generate_here(self, request: GenerationRequest) -> Bursts: ...
    async def reject_transfer(self, transfer: KVTransfer) -> None: ...


def _owner(request: GenerationRequest) -> tuple[str | None, int | None]:
    """Requests of different owners share no blocks in the engine."""
    return request.cache_salt, None if request.adapter is None else request.adapter.id


def _check_digest(request: PrefillRequest, response: PrefillResponse) -> None:
    """Raises PrefillFailed. Does not tell the other engine: its blocks may be someone else's."""
    expected = prompt_digest(
        request.prompt_token_ids,
        model=request.model,
        adapter=request.adapter,
        cache_salt=request.cache_salt,
    )
    if response.digest != expected:
        logger.error("a prefill server computed another prompt: digest=%s", response.digest[:64])
        raise PrefillFailed("digest")


def _side_channel(response: PrefillResponse) -> tuple[str, int]:
    """The address of the engine that has the KV cache. Raises PrefillFailed."""
    params = response.kv_transfer_params
    host, port = params.get("remote_host"), params.get("remote_port")
    complete = params.get("do_remote_prefill") is True and params.get("remote_block_ids")
    if not (complete and isinstance(host, str) and isinstance(port, int)):
        logger.error("a prefill server's engine kept no KV cache")
        raise PrefillFailed("peer_invalid")
    return host, port
