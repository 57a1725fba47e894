"""How families write the arguments of a call. Data."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagged:
    """One by one between tags, a text as it is, any other value as JSON. `%s` is the name."""

    text: str  # what stands before a text
    value: str  # what stands before any other value
    end: str  # what stands behind either; no text can hold `mark`
    mark: str


# As one JSON object, as Python's keywords, or one by one.
Style = Literal["json", "python"] | Tagged
