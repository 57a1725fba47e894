"""The files of prompt embedding tables."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openai_frontend.config import model_options
from openai_frontend.errors import ModelUnavailable
from openai_frontend.models import model_files


@pytest.mark.parametrize("shape", [(2, 3), (1, 2, 3)])
def test_load(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """With or without a batch dimension."""

    np.save(tmp_path / "t.npy", np.ones(shape, dtype="<f2"))
    assert model_files.load_prompt_tables({"t": str(tmp_path / "t.npy")})["t"].shape == (2, 3)


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.ones(3), r"has shape \[3\], not \[tokens, hidden size\]"),
        (np.array([{}], dtype=object), "Python objects"),
    ],
)
def test_invalid_table(tmp_path: Path, array: Any, reason: str) -> None:
    """The error names the table; nothing is unpickled."""

    np.save(tmp_path / "t.npy", array, allow_pickle=True)
    with pytest.raises(ModelUnavailable, match=f"prompt table 't'.*{reason}"):
        model_files.load_prompt_tables({"t": str(tmp_path / "t.npy")})


@pytest.mark.parametrize("content", [None, b"", b"text"])
def test_unreadable_file(tmp_path: Path, content: bytes | None) -> None:
    """A missing or invalid file."""

    path = tmp_path / "t.npy"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelUnavailable, match="prompt table 't'"):
        model_files.load_prompt_tables({"t": str(path)})


def test_relative_paths(tmp_path: Path) -> None:
    """Relative to the model's folder, like other paths in its options."""

    (tmp_path / model_options.FILE).write_text(
        "prompt_embedding_tables: {a: tables/a.npy, b: /b.npy}"
    )
    expected = {"a": f"{tmp_path}/tables/a.npy", "b": "/b.npy"}
    assert model_options.read(tmp_path).prompt_embedding_tables == expected
