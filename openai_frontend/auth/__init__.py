"""Authentication, authorization and rate limits of API keys. Knows no HTTP."""
