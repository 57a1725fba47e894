"""A simulated prefix cache, so that hit rates and times to first token mean something without a
model: load balancers that keep conversations together show a difference.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Added:
    """What a prompt has found and changed. Blocks are hashes of the prompt up to their end."""

    hits: int  # tokens
    stored: Sequence[int]  # blocks, consecutive
    parent: int | None  # the block before the first of them
    first: int  # the first token of the stored blocks
    removed: Sequence[int]  # blocks


class MockPrefixCache:
    """Finds prompts by blocks of tokens from their start, and evicts the blocks that were used
    least recently. As in vLLM, only full blocks are kept, and at least one token is computed.

    Unlike vLLM's, it keeps no blocks of answers, and may evict a running request's blocks.
    """

    def __init__(self, *, blocks: int, block_size: int) -> None:
        """Sizes: number of blocks, and tokens per block."""
        self._capacity = blocks
        self._block_size = block_size
        self._blocks: OrderedDict[int, None] = OrderedDict()  # oldest first

    @property
    def usage(self) -> float:
        """The share of blocks in use; 0 for a cache without blocks."""
        return len(self._blocks) / self._capacity if self._capacity else 0.0

    def add(self, tokens: Sequence[Hashable], *, owner: Hashable) -> Added:
        """Store a prompt. Prompts of different owners (cache salts, adapters) share nothing."""
        prefixes = list(self._prefixes(tokens, owner))
        hits = 0
        while hits < len(prefixes) and prefixes[hits] in self._blocks:
            hits += 1
        for prefix in reversed(prefixes):  # so that the start of a prompt is evicted last
            self._blocks[prefix] = None
            self._blocks.move_to_end(prefix)
        excess = max(0, len(self._blocks) - self._capacity)
        removed = [self._blocks.popitem(last=False)[0] for _ in range(excess)]
        parent = prefixes[hits - 1] if hits else None
        first = hits * self._block_size
        found = first if first < len(tokens) else max(0, first - self._block_size)
        return Added(found, prefixes[hits:], parent, first, removed)

    def _prefixes(self, tokens: Sequence[Hashable], owner: Hashable) -> Iterator[int]:
        prefix = hash(owner)
        for end in range(self._block_size, len(tokens) + 1, self._block_size):
            prefix = hash((prefix, *tokens[end - self._block_size : end]))
            yield prefix
