"""Measurements of several gateways: cache hits, costs, and changes of the set of replicas."""
