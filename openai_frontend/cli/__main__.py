"""`python -m openai_frontend.cli`."""

import sys

from openai_frontend.cli import main

sys.exit(main())
