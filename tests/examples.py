"""How many examples the tests with a number of their own generate."""

from hypothesis import settings

_SUITE = 100  # what the profile `suite` (tests/conftest.py) generates without a number


def scaled(count: int) -> int:
    """`count` in the profile `suite`, four times as many in `explore`."""
    return count * settings().max_examples // _SUITE
