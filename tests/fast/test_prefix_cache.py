from openai_frontend.prefix_cache.blocks import PrefixCache


def test_least_recently_used_blocks_are_evicted():
    """The end of a prompt before its start, and prompts that are used again stay."""
    cache = PrefixCache(blocks=4, block_size=2)
    found = [
        cache.add(prompt, owner=None).hits for prompt in ("aabb", "ccddx", "aabbx", "eex", "ccddx")
    ]

    assert found == [0, 0, 4, 0, 2]
    assert cache.usage == 1


def test_prefixes_count_from_the_start():
    """The same tokens after another beginning are another prefix."""
    cache = PrefixCache(blocks=9, block_size=2)
    found = [cache.add(prompt, owner=None).hits for prompt in ("aabbcc", "xxbbcc", "aabbxx")]

    assert found == [0, 0, 4]


def test_owners_share_nothing():
    cache = PrefixCache(blocks=9, block_size=2)
    found = [cache.add("aabbc", owner=owner).hits for owner in ("one", "other", "one")]

    assert found == [0, 0, 4]


def test_prompt_shorter_than_a_block_is_not_kept():
    cache = PrefixCache(blocks=9, block_size=16)
    found = [cache.add("aabbc", owner=None).hits for _ in range(2)]

    assert (found, cache.usage) == ([0, 0], 0)


def test_changes_name_blocks_and_their_tokens():
    """The stored blocks are those after the hits; the evicted ones were used least recently."""
    cache = PrefixCache(blocks=3, block_size=2)
    first, second = cache.add("aabb", owner=None), cache.add("aaccddx", owner=None)

    assert (first.parent, first.first, len(first.stored), first.removed) == (None, 0, 2, [])
    assert (second.parent, second.first, len(second.stored)) == (first.stored[0], 2, 2)
    assert second.removed == [first.stored[1]]
