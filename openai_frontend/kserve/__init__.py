"""KServe's v2 protocol with Triton's extensions, below /v2."""
