"""Which prompts share a prefix, by blocks of tokens: a model of an engine's prefix cache.

The mock engine has one. A decode server has one for each model, to guess what its engine still has:
a wrong guess costs time, never the answer.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence


class PrefixCache:
    """Finds prompts by blocks of tokens from their start, and evicts the blocks that were used
    least recently. As in vLLM, only full blocks are kept, and at least one token is computed.

    Unlike vLLM's, it keeps no blocks of answers, and may evict a running request's blocks.
    """

    def __init__(self, *, blocks: int, block_size: int) -> None:
        """Sizes: number of blocks, and tokens per block."""
        self._capacity = blocks
        self._block_size = block_size
        self._blocks: OrderedDict[int, None] = OrderedDict()  # hash of a prefix; oldest first

    @property
    def usage(self) -> float:
        """The share of blocks in use; 0 for a cache without blocks."""
        return len(self._blocks) / self._capacity if self._capacity else 0.0

    def find(self, tokens: Sequence[Hashable], *, owner: Hashable) -> int:
        """Return how many of a prompt's tokens are there. Prompts of different owners (cache salts,
        adapters) share nothing.
        """
        hits = 0
        for prefix in self._prefixes(tokens, owner):
            if prefix not in self._blocks:
                break
            hits += 1
        if hits * self._block_size == len(tokens):
            hits = max(0, hits - 1)
        return hits * self._block_size

    def add(self, tokens: Sequence[Hashable], *, owner: Hashable) -> int:
        """Store a prompt, and return as `find` how many of its tokens were there."""
        found = self.find(tokens, owner=owner)
        prefixes = list(self._prefixes(tokens, owner))
        for prefix in reversed(prefixes):  # so that the start of a prompt is evicted last
            self._blocks[prefix] = None
            self._blocks.move_to_end(prefix)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)
        return found

    def _prefixes(self, tokens: Sequence[Hashable], owner: Hashable) -> Iterator[int]:
        prefix = hash(owner)
        for end in range(self._block_size, len(tokens) + 1, self._block_size):
            prefix = hash((prefix, *tokens[end - self._block_size : end]))
            yield prefix
