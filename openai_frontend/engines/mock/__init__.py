"""An engine without a model, for tests and benchmarks: tokens at a configured rate, size, delay and
point of failure, with a simulated prefix cache; or outputs that a script selects by the prompt.

Parameters that affect which tokens are chosen (temperature, penalties, logit_bias, stop, grammars,
...) are accepted and ignored.
"""

from openai_frontend.engines.mock.engine import MockEngine

__all__ = ["MockEngine"]
