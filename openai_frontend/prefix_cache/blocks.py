"""Which prompts share a prefix, by blocks of tokens: a model of an engine's prefix cache.

The mock engine has one. A decode server has one for each model, to guess what its engine still has:
a wrong guess costs time, never the answer.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile


@dataclass(frozen=True, slots=True)
class Added:
    """The result of adding a prompt. Blocks are hashes of the prompt up to their end."""

    hits: int  # tokens
    stored: Sequence[int]  # blocks, consecutive
    parent: int | None  # the block before the first of them
    first: int  # the first token of the stored blocks
    removed: Sequence[int]  # blocks


class PrefixCache:
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

    def find(self, tokens: Sequence[Hashable], *, owner: Hashable) -> int:
        """Return how many of a prompt's tokens are there. Prompts of different owners (cache salts,
        adapters) share nothing.
        """
        return self._tokens(self._hits(self._prefixes(tokens, owner)), len(tokens))

    def add(self, tokens: Sequence[Hashable], *, owner: Hashable) -> Added:
        """Store a prompt."""
        prefixes = list(self._prefixes(tokens, owner))
        hits = self._hits(prefixes)
        for prefix in reversed(prefixes):  # so that the start of a prompt is evicted last
            self._blocks[prefix] = None
            self._blocks.move_to_end(prefix)
        excess = max(0, len(self._blocks) - self._capacity)
        removed = [self._blocks.popitem(last=False)[0] for _ in range(excess)]
        parent = prefixes[hits - 1] if hits else None
        found = self._tokens(hits, len(tokens))
        return Added(found, prefixes[hits:], parent, hits * self._block_size, removed)

    def _hits(self, prefixes: Iterable[int]) -> int:
        return sum(1 for _ in takewhile(self._blocks.__contains__, prefixes))

    def _tokens(self, hits: int, length: int) -> int:
        """Tokens of so many blocks of a prompt; at least one of its tokens is computed."""
        found = hits * self._block_size
        return found if found < length else max(0, found - self._block_size)

    def _prefixes(self, tokens: Sequence[Hashable], owner: Hashable) -> Iterator[int]:
        prefix = hash(owner)
        for end in range(self._block_size, len(tokens) + 1, self._block_size):
            prefix = hash((prefix, *tokens[end - self._block_size : end]))
            yield prefix
