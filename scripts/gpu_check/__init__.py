"""Checks and measurements on an NVIDIA GPU: `make gpu-check`."""
