"""Reads the flags of `vllm serve`, tritonserver and llama.cpp in a command line of `serve`."""
