"""OpenTelemetry's traces of requests. Imports OpenTelemetry only where spans are made."""
