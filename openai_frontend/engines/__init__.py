"""Python models that the in-process backend runs on the gateway's event loop."""
