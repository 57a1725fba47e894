"""vLLM's engine on the gateway's event loop; its EngineCore is a process of its own.

The only folder that imports vLLM, and it does so when a model loads, not before: the import takes
seconds.
"""

from openai_frontend.engines.vllm.engine import VLLMEngine

__all__ = ["VLLMEngine"]
