"""A grammar of 100 KB that takes minutes to compile."""

# Each rule may be empty, so that all may come next: 1,600 take 6 s, and more the square of it.
_RULES = 4000
SLOW_GRAMMAR = "\n".join(
    [
        f"root ::= {' '.join(f'r{i}' for i in range(_RULES))}",
        *(f'r{i} ::= [a-z]* | ""' for i in range(_RULES)),
    ]
)
