"""`python -m openai_frontend.cli`."""

import sys

from openai_frontend.cli.command import main

sys.exit(main())
