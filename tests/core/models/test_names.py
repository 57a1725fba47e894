"""The names of models: aliases, versions and per-model options."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from openai_frontend.config.model_options import ModelOptions
from openai_frontend.errors import ModelNotFound, ModelUnavailable
from openai_frontend.models import model_files
from openai_frontend.models.loader import ModelLoader
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.triton import Options, Server
from tests import mock_models
from tests.fast.prompting import tiny_tokenizer
from tests.mock_models import CONFIG, serving

ALL_VERSIONS = CONFIG + "version_policy { all {} }\n"


def options(repository: Path, name: str, text: str) -> None:
    (repository / name / "openai_frontend.yaml").write_text(text)


def names(registry: ModelRegistry) -> list[str]:
    return [card.name for card in registry.cards()]


def write_versions(repository: Path, name: str, *max_model_lens: int) -> None:
    """Versions 1, 2, ..., each with a tokenizer of its own."""
    for version, max_model_len in enumerate(max_model_lens, start=1):
        folder = repository / name / str(version)
        folder.mkdir(parents=True)
        arguments = {"max_model_len": max_model_len, "tokenizer": "./tokenizer"}
        (folder / "model.json").write_text(json.dumps(arguments))
        tiny_tokenizer.write(folder / "tokenizer", chat_template=f"version {version}")
    (repository / name / "config.pbtxt").write_text(ALL_VERSIONS)


async def test_versions(tmp_path: Path) -> None:
    """Without a number a request gets the latest; if there are several, they are listed."""

    write_versions(tmp_path, "m", 10, 20)
    async with serving(tmp_path) as registry:
        found = {name: registry.get(name) for name in ("m", "m@1", "m@2")}
        listed = [(card.name, card.root, card.alias_of) for card in registry.cards()]
        user = [{"role": "user", "content": "hi"}]
        texts = [(await model.render_chat(user)).text for model in found.values()]

        assert {name: model.facts.max_model_len for name, model in found.items()} == {
            "m": 20, "m@1": 10, "m@2": 20,
        }  # fmt: skip
        assert {model.name for model in found.values()} == found.keys()
        assert texts == ["version 2", "version 1", "version 2"]
        assert listed == [("m", "m", None), ("m@1", "m", "m"), ("m@2", "m", "m")]
        with pytest.raises(ModelNotFound, match="'m@3' does not exist"):
            registry.get("m@3")


async def test_single_version_is_not_listed(tmp_path: Path) -> None:
    """Requests can still name it."""

    mock_models.write(tmp_path, "m")
    async with serving(tmp_path) as registry:
        assert (names(registry), registry.get("m@1").name) == (["m"], "m@1")


async def test_failed_version(tmp_path: Path) -> None:
    """Other versions serve; if it is the latest, the model's name does not fall back to an older
    one.
    """

    write_versions(tmp_path, "m", 10, 20)
    (tmp_path / "m" / "1" / "tokenizer" / "tokenizer.json").write_text("{")
    async with serving(tmp_path) as registry:
        assert registry.get("m").facts.max_model_len == 20
        with pytest.raises(ModelUnavailable, match="'m@1' cannot serve: its tokenizer"):
            registry.get("m@1")


async def test_alias(tmp_path: Path) -> None:
    """It works with the model's versions too, is listed, and refers to the model."""

    mock_models.write(tmp_path, "m", max_model_len=7)
    options(tmp_path, "m", "aliases: [gpt-4o, org/m]\ndescription: Ours")
    async with serving(tmp_path) as registry:
        found = [registry.get(name) for name in ("gpt-4o", "org/m", "gpt-4o@1")]
        card = registry.card("gpt-4o")
        listed = names(registry)

    assert listed == ["gpt-4o", "m", "org/m"]
    assert [model.facts.max_model_len for model in found] == [7, 7, 7]
    assert [model.name for model in found] == ["gpt-4o", "org/m", "gpt-4o@1"]
    assert (card.root, card.alias_of, card.facts.description) == ("m", "m", "Ours")


async def test_ambiguous_alias(tmp_path: Path) -> None:
    """Requests for it get the reason; both models keep their own names."""

    for name in ("a", "b"):
        mock_models.write(tmp_path, name)
        options(tmp_path, name, "aliases: [both]")
    async with serving(tmp_path) as registry:
        with pytest.raises(ModelUnavailable, match="it is an alias of 'a' and of 'b'"):
            registry.get("both")
        assert names(registry) == ["a", "b"]


async def test_model_names_take_precedence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An alias cannot take over another model's requests; the clash is logged once."""

    for name in ("a", "b"):
        mock_models.write(tmp_path, name, max_model_len=ord(name))
    options(tmp_path, "a", "aliases: [b]")
    async with serving(tmp_path) as registry:
        await registry.refresh()
        assert registry.get("b").facts.max_model_len == ord("b")
    assert caplog.messages.count("model a: alias b ignored: a model has that name") == 1


async def test_failure_under_every_name(tmp_path: Path) -> None:
    """An alias of a model that cannot serve is not an unknown name."""

    mock_models.write(tmp_path, "m", fail_at_load="no weights")
    options(tmp_path, "m", "aliases: [other]")
    async with serving(tmp_path) as registry:
        for name in ("other", "other@1", "m@1"):
            with pytest.raises(ModelUnavailable, match="no weights"):
                registry.get(name)
        assert "no weights" in str(registry.card("other").error)


async def test_invalid_options_file(tmp_path: Path) -> None:
    """Only its model fails; the reason names the file and the problem."""

    for name in ("a", "b"):
        mock_models.write(tmp_path, name)
    options(tmp_path, "b", "max_tokens: 3")
    async with serving(tmp_path) as registry:
        error = str(registry.card("b").error)
        listed = names(registry)
    assert listed == ["a"]
    assert error == (
        f"{tmp_path}/b/openai_frontend.yaml: unknown option 'max_tokens'; "
        "did you mean 'max_output_tokens'?"
    )


async def test_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its model fails, with the system's reason."""

    folder_of = model_files.model_folder

    def refused(name: str, repositories: Sequence[Path]) -> Path | None:
        if name == "b":
            raise PermissionError(13, "Permission denied", "/models/b")
        return folder_of(name, repositories)

    monkeypatch.setattr(model_files, "model_folder", refused)
    for name in ("a", "b"):
        mock_models.write(tmp_path, name)
    async with serving(tmp_path) as registry:
        error = registry.card("b").error
        listed = names(registry)
    assert listed == ["a"]
    assert error == "[Errno 13] Permission denied: '/models/b'"


async def test_options_file_is_read_again(tmp_path: Path) -> None:
    """A change applies at the next refresh, without a reload."""

    mock_models.write(tmp_path, "m")
    async with serving(tmp_path) as registry:
        options(tmp_path, "m", "description: new")
        await registry.refresh()
        assert registry.card("m").facts.description == "new"


@pytest.mark.parametrize(
    ("said", "expected"),
    [(5, 5), (10, 10), (11, "its max_model_len of 11 exceeds the engine's limit of 10")],
)
async def test_a_context_of_the_operators(tmp_path: Path, said: int, expected: Any) -> None:
    """It may be less than what the engine can, not more."""

    mock_models.write_with_tokenizer(tmp_path, "m", max_model_len=10)
    settings = {"m": ModelOptions(max_model_len=said)}
    async with serving(tmp_path, settings=settings) as registry:
        if isinstance(expected, int):
            assert registry.get("m").facts.max_model_len == expected
        else:
            assert expected in str(registry.card("m").error)


async def test_tokenizer_option(tmp_path: Path) -> None:
    """It overrides the model's own."""

    mock_models.write(tmp_path, "m")
    tiny_tokenizer.write(tmp_path / "m" / "own", chat_template="own")
    options(tmp_path, "m", "tokenizer: ./own")
    async with serving(tmp_path) as registry:
        prompt = await registry.get("m").render_chat([{"role": "user", "content": "hi"}])
    assert prompt.text == "own"


async def test_several_repositories(tmp_path: Path) -> None:
    """Each model's options file is read from its own repository."""

    repositories = [tmp_path / "one", tmp_path / "two"]
    for repository, name in zip(repositories, "ab", strict=True):
        mock_models.write(repository, name)
        options(repository, name, f"description: of {name}")
    server = Server(Options(model_repositories=repositories))
    registry = ModelRegistry(server, ModelLoader(server))
    await server.start()
    try:
        await registry.refresh()
        found = [(card.name, card.facts.description) for card in registry.cards()]
    finally:
        await server.stop()
        registry.close()
    assert found == [("a", "of a"), ("b", "of b")]
