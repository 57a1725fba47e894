"""Traces of requests. Only `exporter` and `spans` import OpenTelemetry."""
