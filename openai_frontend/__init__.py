"""OpenAI-compatible gateway with Triton Inference Server in its process."""

__version__ = "0.1.0"
