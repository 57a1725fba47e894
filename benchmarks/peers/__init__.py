"""The same vLLM engine behind this gateway, `vllm serve`, and `vllm serve` with its Rust frontend.

`python -m benchmarks.peers`; README.md says what is measured and which flags make the peers work.
"""
