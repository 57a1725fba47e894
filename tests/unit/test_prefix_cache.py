from openai_frontend.prefix_cache import PrefixCache


def test_least_recently_used_blocks_are_evicted():
    """The end of a prompt before its start, and prompts that are used again stay."""
    cache = PrefixCache(blocks=4, block_size=2)
    found = [cache.add(prompt, owner=None) for prompt in ("aabb", "ccddx", "aabbx", "eex", "ccddx")]

    assert found == [0, 0, 4, 0, 2]
    assert cache.usage == 1


def test_prefixes_count_from_the_start():
    """The same tokens after another beginning are another prefix."""
    cache = PrefixCache(blocks=9, block_size=2)
    found = [cache.add(prompt, owner=None) for prompt in ("aabbcc", "xxbbcc", "aabbxx")]

    assert found == [0, 0, 4]


def test_owners_share_nothing():
    cache = PrefixCache(blocks=9, block_size=2)
    found = [cache.add("aabbc", owner=owner) for owner in ("one", "other", "one")]

    assert found == [0, 0, 4]


def test_prompt_shorter_than_a_block_is_not_kept():
    cache = PrefixCache(blocks=9, block_size=16)
    found = [cache.add("aabbc", owner=None) for _ in range(2)]

    assert (found, cache.usage) == ([0, 0], 0)
