"""OpenAI-compatible gateway; its inference runs in the Triton core inside its own process."""

__version__ = "0.1.0"
