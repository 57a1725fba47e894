"""The limits of parameters."""

import pytest

from openai_frontend.errors import InvalidRequest
from openai_frontend.kserve.parameters import read_parameters


@pytest.mark.parametrize("number", [-(2**63), 2**63 - 1])
def test_integers_of_64_bits_are_parameters(number: int) -> None:
    """Both ends of the range are included."""
    assert read_parameters({"n": number}).custom == {"n": number}


@pytest.mark.parametrize("number", [-(2**63) - 1, 2**63])
def test_longer_integers_are_refused(number: int) -> None:
    with pytest.raises(InvalidRequest, match="'n': the integer does not fit into 64 bits"):
        read_parameters({"n": number})


@pytest.mark.parametrize("name", ["priority", "timeout"])
@pytest.mark.parametrize("number", [-1, 2**63, 2**64 - 1, True, 1.0, "1"])
def test_refusal_of_a_count_has_its_range(name: str, number: object) -> None:
    """Clients may send 64 bits without a sign."""
    with pytest.raises(InvalidRequest, match=f"'{name}': must be an integer from 0 to {2**63 - 1}"):
        read_parameters({name: number})
