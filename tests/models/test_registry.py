"""Names to served models, over the real core."""

import asyncio
import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from openai_frontend.errors import GatewayError, ModelNotFound, ModelUnavailable
from openai_frontend.generation import GenerationRequest
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.triton import Options, Server
from tests import mock_models
from tests.mock_models import serving
from tests.prompting import tiny_tokenizer

USER = {"role": "user", "content": "Hello"}


async def test_loaded_models_are_listed_by_name(tmp_path: Path) -> None:
    """Every model that serves has a card, in the order of the names."""

    for name in ("b", "a"):
        mock_models.write(tmp_path, name)
    async with serving(tmp_path) as registry:
        assert [(card.name, card.ready) for card in registry.cards()] == [("a", True), ("b", True)]


async def test_a_card_holds_what_the_engine_says(tmp_path: Path) -> None:
    """Context length and description come from the engine's facts."""

    mock_models.write(tmp_path, "m", max_model_len=77)
    async with serving(tmp_path) as registry:
        card = registry.card("m")
    assert (card.max_model_len, card.description) == (77, "a mock that returns configured tokens")


async def test_a_broken_model_fails_alone(tmp_path: Path) -> None:
    """Its neighbour serves; it is not listed, and its card has the reason."""

    mock_models.write(tmp_path, "broken", fail_at_load="no weights")
    mock_models.write(tmp_path, "good")
    async with serving(tmp_path) as registry:
        names, card = [card.name for card in registry.cards()], registry.card("broken")
    assert names == ["good"]
    assert "no weights" in (card.error or "")


async def test_asking_for_a_broken_model_gives_the_reason(tmp_path: Path) -> None:
    """A model that failed to load is unavailable, not unknown."""

    mock_models.write(tmp_path, "broken", fail_at_load="no weights")
    async with serving(tmp_path) as registry:
        with pytest.raises(ModelUnavailable, match=r"'broken' cannot serve: .*no weights"):
            registry.get("broken")


@pytest.mark.parametrize("name", ["nobody", "../../etc/passwd", "a\0b", ""])
async def test_an_unknown_model_is_not_found(tmp_path: Path, name: str) -> None:
    """The error names the field that named the model."""

    async with serving(tmp_path) as registry:
        with pytest.raises(ModelNotFound, match="does not exist") as refused:
            registry.get(name)
    assert refused.value.param == "model"


async def test_an_absurdly_long_name_is_cut_in_the_message(tmp_path: Path) -> None:
    """A client cannot make us repeat ten thousand characters."""

    async with serving(tmp_path) as registry:
        with pytest.raises(ModelNotFound) as refused:
            registry.get("x" * 10_000)
    assert refused.value.message == f"The model '{'x' * 128}' does not exist."


async def test_nothing_is_known_before_the_first_refresh(tmp_path: Path) -> None:
    """Until then every model is still loading, whatever its name."""

    registry = ModelRegistry(Server(Options(model_repositories=[tmp_path])))
    with pytest.raises(ModelUnavailable, match="still loading"):
        registry.get("m")


async def test_the_registry_is_ready_once_the_models_are_known(tmp_path: Path) -> None:
    """A core that is ready is not enough: requests need the served models."""

    mock_models.write(tmp_path, "m")
    server = Server(Options(model_repositories=[tmp_path]))
    registry = ModelRegistry(server)
    await server.start()
    before = registry.is_ready()
    await registry.refresh()
    after = registry.is_ready()
    await server.stop()
    assert (before, after) == (False, True)


async def test_a_dead_engine_is_unavailable_at_once(tmp_path: Path) -> None:
    """No refresh is needed to see that an engine died."""

    mock_models.write(tmp_path, "m", die_after_tokens=1)
    request = GenerationRequest(request_id="r", prompt_token_ids=[1])
    async with serving(tmp_path) as registry:
        with pytest.raises(GatewayError):
            [burst async for burst in registry.get("m").generate(request)]
        with pytest.raises(ModelUnavailable, match="'m' cannot serve: "):
            registry.get("m")
        assert not registry.card("m").ready


async def test_a_corrupt_tokenizer_fails_its_model_alone(tmp_path: Path) -> None:
    """The engine runs, but nobody can talk to it: the reason says what is wrong."""

    folder = mock_models.write_with_tokenizer(tmp_path, "bad")
    (folder / "tokenizer.json").write_text("{")
    mock_models.write_with_tokenizer(tmp_path, "good")
    async with serving(tmp_path) as registry:
        names, error = [card.name for card in registry.cards()], registry.card("bad").error
    assert names == ["good"]
    assert error is not None
    assert error.startswith("its tokenizer cannot be loaded: ")


async def test_a_model_that_nobody_can_talk_to_is_not_ready(tmp_path: Path) -> None:
    """What only the registry knows, a broken tokenizer, makes the server unready and says why."""

    folder = mock_models.write_with_tokenizer(tmp_path, "bad")
    (folder / "tokenizer.json").write_text("{")
    async with serving(tmp_path) as registry:
        ready, unready = registry.is_ready(), registry.unready()

    assert (ready, list(unready)) == (False, ["bad"])


async def test_models_can_be_loaded_and_unloaded(tmp_path: Path) -> None:
    """In explicit mode the names come and go with load and unload."""

    mock_models.write(tmp_path, "m")
    async with serving(tmp_path, model_control_mode="explicit", startup_models=()) as registry:
        seen = [[card.name for card in registry.cards()]]
        await registry.load("m")
        seen.append([card.name for card in registry.cards()])
        await registry.unload("m")
        seen.append([card.name for card in registry.cards()])
    assert seen == [[], ["m"], []]


async def test_a_model_that_is_not_loaded_is_unavailable(tmp_path: Path) -> None:
    """It stands in the repository, so it is not unknown."""

    mock_models.write(tmp_path, "m")
    async with serving(tmp_path, model_control_mode="explicit", startup_models=()) as registry:
        await registry.load("m")
        await registry.unload("m")
        with pytest.raises(ModelUnavailable, match="'m' cannot serve: it is not loaded"):
            registry.get("m")


async def test_a_failed_load_tells_why(tmp_path: Path) -> None:
    """The caller of `load` gets the engine's reason."""

    mock_models.write(tmp_path, "m", fail_at_load="no weights")
    async with serving(tmp_path, model_control_mode="explicit", startup_models=()) as registry:
        with pytest.raises(GatewayError, match="no weights"):
            await registry.load("m")


async def test_a_refresh_keeps_models_that_did_not_change(tmp_path: Path) -> None:
    """Tokenizers are not read again for nothing."""

    mock_models.write(tmp_path, "m")
    async with serving(tmp_path) as registry:
        before = registry.get("m")
        await registry.refresh()
        assert registry.get("m") is before


async def test_a_refresh_keeps_models_without_an_engine_of_ours(tmp_path: Path) -> None:
    """Other backends say nothing of their models, which is no news either."""

    mock_models.write(tmp_path, "part")
    mock_models.write_ensemble(tmp_path, "whole")
    async with serving(tmp_path) as registry:
        before = registry.get("whole")
        await registry.refresh()
        assert registry.get("whole") is before


async def test_a_reload_of_a_model_without_an_engine_of_ours_is_seen(tmp_path: Path) -> None:
    """Its config says what it is."""

    mock_models.write(tmp_path, "part")
    mock_models.write_ensemble(tmp_path, "whole")
    async with serving(
        tmp_path, model_control_mode="explicit", startup_models=("part", "whole")
    ) as registry:
        before = registry.get("whole")
        mock_models.write_ensemble(
            tmp_path, "whole", extra="max_batch_size: 0 version_policy { all {} }"
        )
        await registry.load("whole")
        assert registry.get("whole") is not before


async def test_a_reloaded_model_has_its_new_facts(tmp_path: Path) -> None:
    """What changed in the repository is seen after the reload."""

    mock_models.write(tmp_path, "m", max_model_len=10)
    async with serving(tmp_path, model_control_mode="explicit") as registry:
        mock_models.write(tmp_path, "m", max_model_len=20)
        await registry.load("m")
        assert registry.get("m").max_model_len == 20


async def test_a_followed_repository_shows_its_new_models(tmp_path: Path) -> None:
    """A model folder that appears while the server polls can soon be used."""

    options: dict[str, Any] = {"model_control_mode": "poll", "repository_poll_s": 0.1}
    async with serving(tmp_path, **options) as registry:
        following = asyncio.ensure_future(registry.watch(0.1))
        mock_models.write(tmp_path, "m")
        deadline = time.monotonic() + 10
        while not registry.cards() and time.monotonic() < deadline:  # noqa: ASYNC110  no event
            await asyncio.sleep(0.05)
        following.cancel()
        assert [card.name for card in registry.cards()] == ["m"]


def write_options(repository: Path, name: str, text: str) -> None:
    """The file beside a model's config."""
    (repository / name / "openai_frontend.yaml").write_text(text)


async def test_the_parts_of_an_ensemble_are_not_listed(tmp_path: Path) -> None:
    """The ensemble is what clients are meant to name; it answers."""

    mock_models.write(tmp_path, "part", tokens=["a"], answer_tokens=2)
    mock_models.write_ensemble(tmp_path, "whole")
    request = GenerationRequest(request_id="r", prompt="hi")
    async with serving(tmp_path) as registry:
        names = [card.name for card in registry.cards()]
        answer = [burst async for burst in registry.get("whole").generate(request)]
    assert names == ["whole"]
    assert "".join(delta.text for burst in answer for delta in burst) == "aa"


async def test_a_part_is_refused_by_its_name(tmp_path: Path) -> None:
    """Who asks for it is told what to ask for; that is no trouble of the server's."""

    mock_models.write(tmp_path, "part")
    mock_models.write_ensemble(tmp_path, "whole")
    async with serving(tmp_path) as registry:
        with pytest.raises(ModelNotFound, match="'part' is not served: it is a composing"):
            registry.get("part")
        assert registry.card("part").error == "it is a composing model of 'whole'"
        assert registry.is_ready()


async def test_a_part_may_stand_alone(tmp_path: Path) -> None:
    """An ensemble around a model need not take it from those who knew it."""

    mock_models.write(tmp_path, "part")
    write_options(tmp_path, "part", "expose: true")
    mock_models.write_ensemble(tmp_path, "whole")
    async with serving(tmp_path) as registry:
        assert [card.name for card in registry.cards()] == ["part", "whole"]


async def test_a_part_that_only_its_operator_knows(tmp_path: Path) -> None:
    """A model that calls others by itself does not say which."""

    for name in ("part", "whole"):
        mock_models.write(tmp_path, name)
    write_options(tmp_path, "part", "ensemble: whole")
    async with serving(tmp_path) as registry:
        assert [card.name for card in registry.cards()] == ["whole"]


async def test_a_model_of_other_tensors_is_not_served(tmp_path: Path) -> None:
    """It is loaded and healthy, but no request is for it; who asks is told why."""

    mock_models.write(tmp_path, "part")
    mock_models.write_ensemble(tmp_path, "odd", output=("num_output_tokens", "TYPE_UINT32"))
    async with serving(tmp_path) as registry:
        assert "odd" not in [card.name for card in registry.cards()]
        assert registry.is_ready()
        with pytest.raises(ModelNotFound, match="'odd' is not served: "):
            registry.get("odd")
        card = registry.card("odd")
    assert (card.ready, bool(card.error)) == (False, True)


HERMES = "{% if tools %}<tool_call>{% endif %}"


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        ({"chat_template": tiny_tokenizer.CHATML}, {"chat": True, "tools": False}),
        ({"chat_template": HERMES}, {"chat": True, "tools": True}),
        ({"chat_template": "<tool_call>"}, {"chat": True, "tools": False}),
        ({"chat_template": None}, {"chat": False, "tools": False}),
    ],
)
async def test_a_template_makes_a_model_chat(
    tmp_path: Path, tokenizer: dict[str, str | None], expected: dict[str, bool]
) -> None:
    """Without one it completes texts. It can be offered tools where the template takes them and
    its calls are recognised.
    """

    folder = mock_models.write_with_tokenizer(tmp_path, "m")
    tiny_tokenizer.write(folder, **tokenizer)
    async with serving(tmp_path) as registry:
        found = dataclasses.asdict(registry.card("m").capabilities)
    assert expected.items() <= found.items()
    assert (found["completions"], found["images"]) == (True, False)


async def test_how_answers_are_read_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line for each model that chats: what was chosen, and why; a warning for what will not
    work, unless the model never promised it.
    """

    caplog.set_level("INFO")
    templates = {"a": HERMES, "b": tiny_tokenizer.CHATML, "c": None, "d": "<tool_call>"}
    for name, template in templates.items():
        mock_models.write_with_tokenizer(tmp_path, name)
        tiny_tokenizer.write(tmp_path / name / "1" / "tokenizer", chat_template=template)
    async with serving(tmp_path) as registry:
        readings = [registry.get(name).reading.name for name in "abcd"]

    assert readings == ["hermes", "text", "text", "hermes"]
    assert [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name == "openai_frontend.models.loader"
    ] == [
        ("INFO", "model a: output is parsed as hermes. The chat template contains '<tool_call>'."),
        (
            "INFO",
            "model b: output is parsed as text. "
            "The chat template neither supports tools nor marks reasoning.",
        ),
        ("INFO", "model d: output is parsed as hermes. The chat template contains '<tool_call>'."),
        (
            "WARNING",
            "model d: The chat template does not show tools to the model, so it will not call any.",
        ),
    ]


async def test_a_parser_of_the_settings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A model's own goes before that for all; a model that is not there is told."""

    for name in ("a", "b"):
        mock_models.write_with_tokenizer(tmp_path, name)
    parsers = {"*": "hermes", "b": "mistral"}
    async with serving(
        tmp_path, tool_call_parser=parsers, reasoning_parser={"nobody": "qwen3"}
    ) as registry:
        readings = [registry.get(name).reading.name for name in "ab"]

    assert readings == ["hermes", "mistral"]
    assert "reasoning_parser: the model 'nobody' does not exist" in caplog.text
    assert (
        "model a: The chat template does not show tools to the model, so it will not call any."
        in caplog.text
    )


async def test_a_parser_that_cannot_be_had_fails_its_model_alone(tmp_path: Path) -> None:
    """The reason names the setting and the parser."""

    for name in ("a", "b"):
        mock_models.write_with_tokenizer(tmp_path, name)
    async with serving(tmp_path, tool_call_parser={"b": "no:C"}) as registry:
        error = registry.card("b").error
        assert [card.name for card in registry.cards()] == ["a"]
    assert str(error).startswith("its tool_call_parser no:C: ModuleNotFoundError")


async def test_a_parser_for_all_is_for_those_that_chat(tmp_path: Path) -> None:
    """A model that embeds, or has no chat template, takes no harm from it."""

    for name, tasks in (("a", ["generate"]), ("b", ["embed"])):
        mock_models.write_with_tokenizer(tmp_path, name, tasks=tasks)
    tiny_tokenizer.write(tmp_path / "a" / "1" / "tokenizer", chat_template=None)
    async with serving(tmp_path, tool_call_parser={"*": "no:C"}) as registry:
        assert [card.name for card in registry.cards()] == ["a", "b"]
        assert [registry.get(name).reading.tools for name in "ab"] == [False, False]


async def test_the_operators_template_decides(tmp_path: Path) -> None:
    """What the model is told, not what its folder would have told it; else its config."""

    for name in ("a", "b"):
        mock_models.write_with_tokenizer(tmp_path, name)
    (tmp_path / "b" / "1" / "tokenizer" / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "hermes.jinja").write_text(HERMES)
    (tmp_path / "tools.jinja").write_text("{% if tools %}{{ tools }}{% endif %}")
    templates = {
        name: str(tmp_path / f"{file}.jinja")
        for name, file in zip("ab", ("hermes", "tools"), strict=True)
    }
    async with serving(tmp_path, chat_templates=templates) as registry:
        readings = [registry.get(name).reading.name for name in "ab"]

    assert readings == ["hermes", "llama3_json"]


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ({"generate"}, {"completions"}),
        ({"embed"}, {"embeddings", "rerank"}),
        ({"score"}, {"rerank"}),
    ],
)
async def test_a_task_is_a_capability(tmp_path: Path, tasks: set[str], expected: set[str]) -> None:
    """What the model has no contract for, no request can ask of it."""

    mock_models.write(tmp_path, "m")
    contracts = {
        "generate": "contract", "embed": "embedding_contract", "score": "score_contract",
    }  # fmt: skip
    without: dict[str, Any] = dict.fromkeys(contracts[task] for task in contracts.keys() - tasks)
    async with serving(tmp_path) as registry:
        model = dataclasses.replace(registry.get("m"), **without)
    found = dataclasses.asdict(model.capabilities())
    assert {name for name, able in found.items() if able} == expected


TEMPLATES = {"*": "chatml", "b": "llama3"}


async def test_a_model_may_have_a_template_of_its_own(tmp_path: Path) -> None:
    """The others have the one for all, or else their tokenizer's."""

    for name in ("a", "b"):
        mock_models.write_with_tokenizer(tmp_path, name)
    async with serving(tmp_path, chat_templates=TEMPLATES) as registry:
        texts = [(await registry.get(name).render_chat([USER])).text for name in ("a", "b")]
    assert ["<|im_start|>" in str(text) for text in texts] == [True, False]


async def test_a_template_that_cannot_be_read_fails_its_model_alone(tmp_path: Path) -> None:
    """The reason names it."""

    for name in ("a", "b"):
        mock_models.write_with_tokenizer(tmp_path, name)
    async with serving(tmp_path, chat_templates={"b": "nope"}) as registry:
        names, error = [card.name for card in registry.cards()], registry.card("b").error
    assert names == ["a"]
    assert error == "its chat template nope: No such file or directory"


async def test_a_template_for_no_model_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A name that was misspelt does nothing, and says so once."""

    mock_models.write(tmp_path, "m")
    async with serving(tmp_path, chat_templates={"mm": "chatml", "*": "chatml"}) as registry:
        await registry.refresh()
    assert caplog.messages.count("chat_template: the model 'mm' does not exist") == 1
