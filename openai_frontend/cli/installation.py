"""Which of Triton's backends are on this machine. Loads none."""

from pathlib import Path

from openai_frontend.triton import library, python_backend

_OURS = "inprocess"
_OWN_KIND = {"", "ensemble"}  # the core's own, or for it to choose


def lack(backend: str, backend_directory: Path | None) -> str | None:
    """A sentence where models of the backend cannot be loaded here; None where they can."""
    folder = backend_directory or library.IMAGE_BACKENDS
    if backend == _OURS or backend in _OWN_KIND or (folder / backend).is_dir():
        return None
    if backend != python_backend.BACKEND:
        return f"Its backend '{backend}' is not on this machine, in {folder}."
    try:
        python_backend.shared_library()
    except python_backend.PythonBackendUnavailable as error:
        return f"{error}."
    return None
