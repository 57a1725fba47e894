"""OpenAI-compatible gateway whose inference runs in Triton Inference Server inside its own process."""

__version__ = "0.1.0"
