"""A grammar within the limit of 65,536 characters that compiles much longer than the time limit."""

import string
from itertools import islice, product

# Every rule may be empty, so all may follow: 1,600 rules take 6 s, growing with the square.
_RULES = ["".join(pair) for pair in islice(product(string.ascii_letters, repeat=2), 2600)]
SLOW_GRAMMAR = "\n".join(
    [f"root ::= {' '.join(_RULES)}", *(f'{rule} ::= [a-z]* | ""' for rule in _RULES)]
)
