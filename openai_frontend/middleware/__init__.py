"""ASGI middleware: what applies to every request, whatever its route."""
