"""Python models that the in-process backend runs on the gateway's event loop."""

import logging

from openai_frontend.logs.redaction import redact_exceptions

# Engines work for requests in tasks and threads of their own
redact_exceptions(logging.getLogger(__name__))
