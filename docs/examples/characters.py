"""Example of a constraint: `metadata: {"characters": "..."}` restricts the answer to them."""

from openai_frontend.serving.constraints.plugin import ConstraintPlugin, LogitsProcessor
from schemas.sampling import SamplingFields


class Characters(ConstraintPlugin):
    """Reads the request; the engine's logits processor does the work."""

    def constraint(self, request: SamplingFields) -> LogitsProcessor | None:
        """Constrain only requests that name characters."""
        characters = (request.metadata or {}).get("characters")
        if not characters:
            return None
        return LogitsProcessor(name="characters", arguments={"characters": characters})
