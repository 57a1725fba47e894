"""`python -m scripts.setup`: refuses a Python that cannot parse the other modules."""

import sys

from scripts.setup.python_version import python_problem

problem = python_problem(sys.version_info)
if problem:
    sys.exit("setup: " + problem)

from scripts.setup.command import main  # noqa: E402 - only now is it known to be readable

sys.exit(main())
