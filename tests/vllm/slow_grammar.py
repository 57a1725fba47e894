"""A grammar within the limit of 65,536 characters that takes far longer to compile than a trial."""

import string
from itertools import islice, product

# Each rule may be empty, so that all may come next: 1,600 take 6 s, and more the square of it.
_RULES = ["".join(pair) for pair in islice(product(string.ascii_letters, repeat=2), 2600)]
SLOW_GRAMMAR = "\n".join(
    [f"root ::= {' '.join(_RULES)}", *(f'{rule} ::= [a-z]* | ""' for rule in _RULES)]
)
