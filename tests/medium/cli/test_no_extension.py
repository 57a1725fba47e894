"""The command without its extension, as from a wheel that was unpacked for another Python."""

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow  # each starts a process


@pytest.mark.parametrize("command", ["serve", "check"])
def test_extension_for_another_python_is_one_line(command):
    """The message has what was found, what is needed and what to do."""
    script = (
        "import sys; sys.modules['openai_frontend.triton._core'] = None\n"
        f"from openai_frontend.cli import main; sys.exit(main(['{command}']))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert (result.returncode, result.stdout) == (1, "")
    assert re.fullmatch(
        r"openai-frontend: openai_frontend\.triton\._core is not built for this Python: \S+/triton"
        r" has no build of it, _core\.\S+\.so is needed\. Install the wheel for Python 3\.\d+"
        r" with pip, or run make setup in the sources\n",
        result.stderr,
    )


def test_other_missing_modules_keep_their_traceback():
    """A broken installation of a dependency is another fault."""
    script = (
        "import sys; sys.modules['orjson'] = None\n"
        "from openai_frontend.cli import main; sys.exit(main(['check']))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert "ModuleNotFoundError: import of orjson halted" in result.stderr
