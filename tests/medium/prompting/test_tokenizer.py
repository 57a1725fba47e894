"""Tokenizers from local folders."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer as FastTokenizer

from openai_frontend.errors import ModelUnavailable
from openai_frontend.prompting import tokenizer
from tests.fast.prompting import tiny_tokenizer

TEXT = "Hello <|im_start|>über \U0001f600\n\n  you"


@pytest.mark.slow
@pytest.mark.parametrize("special", [True, False])
def test_ids_equal_transformers(
    tiny: tokenizer.Tokenizer, tokenizer_folder: Path, special: bool
) -> None:
    from transformers import AutoTokenizer

    expected = AutoTokenizer.from_pretrained(tokenizer_folder).encode(
        TEXT, add_special_tokens=special
    )
    assert expected == tiny.encode(TEXT, add_special_tokens=special).ids


def test_special_tokens_are_those_of_the_folder(tiny: tokenizer.Tokenizer) -> None:
    """Templates get them from its configuration."""

    expected = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    assert expected == tiny.special_tokens


def test_single_template_is_the_default(tiny: tokenizer.Tokenizer) -> None:
    assert tiny.chat_templates == {"default": tiny_tokenizer.CHATML}


def test_folder_without_a_template(tmp_path: Path) -> None:
    """A base model's tokenizer loads without a chat template."""

    folder = tiny_tokenizer.write(tmp_path, chat_template=None)
    assert tokenizer.load(folder).chat_templates == {}


@pytest.mark.parametrize("content", ["not json", "{}", '{"model": {"type": "Nope"}}'])
def test_corrupt_tokenizer_makes_the_model_unavailable(tmp_path: Path, content: str) -> None:
    """The error names the tokenizer."""

    tiny_tokenizer.write(tmp_path)
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelUnavailable, match="its tokenizer cannot be loaded: "):
        tokenizer.load(tmp_path)


def test_missing_folder_is_an_error(tmp_path: Path) -> None:
    """Nothing is downloaded."""

    with pytest.raises(ModelUnavailable, match="its tokenizer cannot be loaded: "):
        tokenizer.load(tmp_path / "missing")


NAMED = {"default": "plain", "tool_use": "tools", "rag": "documents"}


def _in_files(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("plain")
    named = folder / "additional_chat_templates"
    named.mkdir()
    (named / "tool_use.jinja").write_text("tools")
    (named / "rag.jinja").write_text("documents")


def _in_a_list(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    templates = [{"name": name, "template": template} for name, template in NAMED.items()]
    path.write_text(json.dumps({**config, "chat_template": templates}))


@pytest.mark.parametrize("write", [_in_files, _in_a_list])
def test_templates_by_purpose(tmp_path: Path, write: Callable[[Path], None]) -> None:
    """They are separate files, or a list in the configuration."""

    write(tiny_tokenizer.write(tmp_path, chat_template=None))
    assert tokenizer.load(tmp_path).chat_templates == NAMED


def test_template_file_overrides_the_configuration(tmp_path: Path) -> None:
    """The file is `chat_template.jinja`."""

    tiny_tokenizer.write(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("file")
    assert tokenizer.load(tmp_path).chat_templates == {"default": "file"}


def test_no_truncation_or_padding(tmp_path: Path) -> None:
    """Encoder models configure both, which would hide the true length."""

    fast = FastTokenizer.from_file(str(tiny_tokenizer.write(tmp_path) / "tokenizer.json"))
    fast.enable_truncation(4)
    fast.enable_padding(length=4)
    fast.save(str(tmp_path / "tokenizer.json"))
    loaded = tokenizer.load(tmp_path)
    counts = [len(loaded.encode("!" * n, add_special_tokens=False)) for n in (1, 9)]
    assert counts == [1, 9]
