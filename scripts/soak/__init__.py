"""Random load on one gateway: `make soak`."""
