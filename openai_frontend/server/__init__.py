"""The HTTP server: uvicorn with our limits, signals, certificates and shutdown."""
