"""vLLM's engine on the gateway's event loop; its EngineCore is a separate process.

The only folder that imports vLLM, and only when a model loads, because the import takes seconds.
"""

from openai_frontend.engines.vllm.engine import VLLMEngine

__all__ = ["VLLMEngine"]
