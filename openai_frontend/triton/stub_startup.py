"""Run by Triton's Python stub before any model: enters the gateway's Python environment.

The stub embeds an interpreter that ignores environment variables and starts in the C locale. This
file is linked into a separate environment, so it imports nothing from this package.
"""

import atexit
import locale
import os
import site
import sys

_ASCII = "ANSI_X3.4-1968"


def enter(executable: str, prefix: str, user_site: str | None, library_path: str | None) -> None:
    """Make this interpreter look like `executable` to models: packages, subprocesses and UTF-8.

    Runs while `site` sets up its paths; `site` then adds the packages below `prefix`. `user_site`
    is the user's site-packages if the gateway uses them, `library_path` the LD_LIBRARY_PATH of the
    models' subprocesses.
    """
    sys.path.remove(os.path.dirname(__file__))
    _leave_to_children(executable, library_path)
    sys.executable = executable
    sys.prefix = sys.exec_prefix = prefix
    search_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in search_path if path]
    if user_site is not None:
        site.addsitedir(user_site)
    _speak_utf8()
    atexit.register(_end_process)  # the first one registered runs last


def _end_process() -> None:
    """End without finalizing the interpreter: stubs of 2026 (core 2.70) release Python objects
    after that, so each of them would abort with a "Fatal Python error" when its model is unloaded.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


def _leave_to_children(executable: str, library_path: str | None) -> None:
    """Restore the gateway's PATH and LD_LIBRARY_PATH for subprocesses."""
    folder, outer = os.path.dirname(executable), os.environ["PATH"].partition(os.pathsep)[2]
    os.environ["PATH"] = os.pathsep.join([folder, outer])
    if library_path is None:
        del os.environ["LD_LIBRARY_PATH"]
    else:
        os.environ["LD_LIBRARY_PATH"] = library_path


def _speak_utf8() -> None:
    try:
        locale.setlocale(locale.LC_CTYPE, "")
    except locale.Error:  # the locale is not installed
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    if locale.nl_langinfo(locale.CODESET) == _ASCII:
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding=locale.nl_langinfo(locale.CODESET))  # type: ignore[union-attr]
