"""A constraint of one's own: `metadata: {"characters": "..."}` lets an answer hold no others."""

from openai_frontend.serving.constraints.plugin import ConstraintPlugin, LogitsProcessor
from schemas.sampling import SamplingFields


class Characters(ConstraintPlugin):
    """Reads the request, and leaves the work to the engine's logits processor."""

    def constraint(self, request: SamplingFields) -> LogitsProcessor | None:
        """Only requests that name characters are held to them."""
        characters = (request.metadata or {}).get("characters")
        if not characters:
            return None
        return LogitsProcessor(name="characters", arguments={"characters": characters})
