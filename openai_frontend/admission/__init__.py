"""Wait queues for requests: limits, priorities and fairness between keys. Knows no HTTP."""
