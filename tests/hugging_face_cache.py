"""Hugging Face's download cache, in the layout of its library."""

from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write(cache: Path, name: str, weights: Path, revision: str = "main") -> Path:
    """Adds a folder of weights to the cache under its name on the hub, and returns the snapshot."""
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / revision).write_text(COMMIT)
    (repository / "snapshots").mkdir()
    snapshot = repository / "snapshots" / COMMIT
    snapshot.symlink_to(weights)
    return snapshot
