"""Names and served models, with the real core."""

import asyncio
import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from openai_frontend.errors import GatewayError, ModelNotFound, ModelUnavailable
from openai_frontend.generation import GenerationRequest
from openai_frontend.models.loader import ModelLoader
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.models.snapshot import Snapshot
from openai_frontend.triton import Options, Server
from tests import mock_models
from tests.core.engines import failing_engines
from tests.core.engines.failing_engines import LoadsWhenTold
from tests.core.triton.waiting import until
from tests.fast.prompting import tiny_tokenizer
from tests.mock_models import serving

USER = {"role": "user", "content": "Hello"}


async def test_loaded_models_are_listed_by_name(tmp_path: Path) -> None:
    """Every model that serves has a card, in the order of the names."""

    for name in ("b", "a"):
        mock_models.write(tmp_path, name)
    async with serving(tmp_path) as registry:
        assert [(card.name, card.ready) for card in registry.cards()] == [("a", True), ("b", True)]


async def test_card_has_the_engines_facts(tmp_path: Path) -> None:
    """Context length and description come from the engine's facts."""

    mock_models.write(tmp_path, "m", max_model_len=77)
    async with serving(tmp_path) as registry:
        facts = registry.card("m").facts
    assert (facts.max_model_len, facts.description) == (
        77,
        "a mock that returns configured tokens",
    )


async def test_broken_model(tmp_path: Path) -> None:
    """It is not listed, and its card has the reason; other models serve."""

    mock_models.write(tmp_path, "broken", fail_at_load="no weights")
    mock_models.write(tmp_path, "good")
    async with serving(tmp_path) as registry:
        names, card = [card.name for card in registry.cards()], registry.card("broken")
    assert names == ["good"]
    assert "no weights" in (card.error or "")


async def test_request_to_a_broken_model(tmp_path: Path) -> None:
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


async def test_long_name_is_cut(tmp_path: Path) -> None:
    """The message does not repeat ten thousand characters."""

    async with serving(tmp_path) as registry:
        with pytest.raises(ModelNotFound) as refused:
            registry.get("x" * 10_000)
    assert refused.value.message == f"The model '{'x' * 128}' does not exist."


async def test_before_the_first_refresh(tmp_path: Path) -> None:
    """Every model is still loading, whatever its name."""

    server = Server(Options(model_repositories=[tmp_path]))
    registry = ModelRegistry(server, ModelLoader(server))
    with pytest.raises(ModelUnavailable, match="still loading"):
        registry.get("m")


async def test_the_registry_is_ready_once_the_models_are_known(tmp_path: Path) -> None:
    """A core that is ready is not enough: requests need the served models."""

    mock_models.write(tmp_path, "m")
    server = Server(Options(model_repositories=[tmp_path]))
    registry = ModelRegistry(server, ModelLoader(server))
    await server.start()
    before = registry.is_ready()
    await registry.refresh()
    after = registry.is_ready()
    await server.stop()
    assert (before, after) == (False, True)


async def test_dead_engine_without_refresh(tmp_path: Path) -> None:
    """A dead engine is detected without a refresh."""

    mock_models.write(tmp_path, "m", die_after_tokens=1)
    request = GenerationRequest(request_id="r", prompt_token_ids=[1])
    async with serving(tmp_path) as registry:
        with pytest.raises(GatewayError):
            [burst async for burst in registry.get("m").generate(request)]
        with pytest.raises(ModelUnavailable, match="'m' cannot serve: "):
            registry.get("m")
        assert not registry.card("m").ready


async def test_corrupt_tokenizer(tmp_path: Path) -> None:
    """The engine runs, but its model is unavailable with the reason."""

    folder = mock_models.write_with_tokenizer(tmp_path, "bad")
    (folder / "tokenizer.json").write_text("{")
    mock_models.write_with_tokenizer(tmp_path, "good")
    async with serving(tmp_path) as registry:
        names, error = [card.name for card in registry.cards()], registry.card("bad").error
    assert names == ["good"]
    assert error is not None
    assert error.startswith("its tokenizer cannot be loaded: ")


async def test_broken_tokenizer_makes_the_server_unready(tmp_path: Path) -> None:
    """Readiness includes problems that only the registry knows, with the reason."""

    folder = mock_models.write_with_tokenizer(tmp_path, "bad")
    (folder / "tokenizer.json").write_text("{")
    async with serving(tmp_path) as registry:
        ready, unready = registry.is_ready(), registry.unready()

    assert (ready, list(unready)) == (False, ["bad"])


@pytest.mark.parametrize("mode", ["none", "explicit"])
async def test_folders_that_are_not_models(
    tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They do not make the server unready. Visible ones, which may be mistakes, are logged."""

    mock_models.write(tmp_path, "m")
    for folder in (".git/objects", ".snapshot/1", "lost+found", "notes"):
        (tmp_path / folder).mkdir(parents=True)
    async with serving(tmp_path, model_control_mode=mode) as registry:
        ready, unready = registry.is_ready(), registry.unready()
        names = [card.name for card in registry.cards()]

    assert (ready, unready, names) == (True, {}, ["m"])
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/notes ignored: it has no config.pbtxt and no version folder to read"
    ]


async def test_repository_without_models(tmp_path: Path) -> None:
    """A folder that is not a model does not make it unready either."""

    (tmp_path / ".git").mkdir()
    async with serving(tmp_path) as registry:
        assert registry.is_ready()


async def test_failed_model_beside_a_folder_that_is_not_a_model(tmp_path: Path) -> None:
    """It is reported by name, whether its config or its engine is broken."""

    (tmp_path / ".git").mkdir()
    mock_models.write(tmp_path, "broken", config="backend: inprocess {")
    mock_models.write(tmp_path, "failing", fail_at_load="no weights")
    async with serving(tmp_path) as registry:
        unready = registry.unready()

    assert unready.keys() == {"broken", "failing"}
    assert "config.pbtxt" in unready["broken"]
    assert "no weights" in unready["failing"]


async def test_core_that_is_not_ready_without_a_model_as_the_reason(tmp_path: Path) -> None:
    """In mode `poll` the core loads each folder. The reason refers to its log."""

    mock_models.write(tmp_path, "m")
    (tmp_path / ".git").mkdir()
    async with serving(tmp_path, model_control_mode="poll") as registry:
        ready, unready = registry.is_ready(), registry.unready()

    assert not ready
    assert unready == {"*": "Triton's core is not ready; its log has the reason"}


async def test_model_without_a_version_is_the_reason(tmp_path: Path) -> None:
    """The core's index does not have it."""

    mock_models.write(tmp_path, "m")
    mock_models.write(tmp_path, "empty").rename(tmp_path / "empty" / "latest")
    async with serving(tmp_path, model_control_mode="explicit") as registry:
        with pytest.raises(GatewayError):
            await registry.load("empty")
        ready, unready = registry.is_ready(), registry.unready()
        (tmp_path / "empty" / "latest").rename(tmp_path / "empty" / "1")
        await registry.load("empty")
        later = registry.is_ready(), registry.unready()

    assert not ready
    assert unready.keys() == {"empty"}
    assert "at least one version" in unready["empty"]
    assert later == (True, {})


async def test_core_that_is_not_ready_while_a_model_loads(tmp_path: Path) -> None:
    """The reason is the model that loads, once the core lists it."""

    LoadsWhenTold.may_end.clear()
    mock_models.write(tmp_path, "m", config=failing_engines.config("LoadsWhenTold"))
    async with serving(tmp_path, model_control_mode="explicit", startup_models=()) as registry:
        loading = asyncio.create_task(registry.load("m"))
        try:
            await until(lambda: registry.unready() == {"m": "it is loading: reading weights"})
            assert not registry.is_ready()
        finally:
            LoadsWhenTold.may_end.set()
        await loading
        assert registry.unready() == {}


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


async def test_unloaded_model(tmp_path: Path) -> None:
    """It is in the repository, so it is not unknown."""

    mock_models.write(tmp_path, "m")
    async with serving(tmp_path, model_control_mode="explicit", startup_models=()) as registry:
        await registry.load("m")
        await registry.unload("m")
        with pytest.raises(ModelUnavailable, match="'m' cannot serve: it is not loaded"):
            registry.get("m")


async def test_failed_load(tmp_path: Path) -> None:
    """The caller of `load` gets the engine's reason."""

    mock_models.write(tmp_path, "m", fail_at_load="no weights")
    async with serving(tmp_path, model_control_mode="explicit", startup_models=()) as registry:
        with pytest.raises(GatewayError, match="no weights"):
            await registry.load("m")


async def test_refresh_reuses_models(tmp_path: Path) -> None:
    """Tokenizers are not loaded again without a change."""

    mock_models.write(tmp_path, "m")
    async with serving(tmp_path) as registry:
        before = registry.get("m")
        await registry.refresh()
        assert registry.get("m") is before


async def test_refresh_reuses_models_of_other_backends(tmp_path: Path) -> None:
    """They have no engine facts, which is no change either."""

    mock_models.write(tmp_path, "part")
    mock_models.write_ensemble(tmp_path, "whole")
    async with serving(tmp_path) as registry:
        before = registry.get("whole")
        await registry.refresh()
        assert registry.get("whole") is before


async def test_reload_of_another_backends_model(tmp_path: Path) -> None:
    """Its changed config is detected."""

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


async def test_reload_updates_facts(tmp_path: Path) -> None:
    """Changes in the repository apply after the reload."""

    mock_models.write(tmp_path, "m", max_model_len=10)
    async with serving(tmp_path, model_control_mode="explicit") as registry:
        mock_models.write(tmp_path, "m", max_model_len=20)
        await registry.load("m")
        assert registry.get("m").facts.max_model_len == 20


async def test_polled_repository(tmp_path: Path) -> None:
    """A new model folder is served soon after it appears."""

    options: dict[str, Any] = {"model_control_mode": "poll", "repository_poll_s": 0.1}
    async with serving(tmp_path, **options) as registry:
        following = asyncio.ensure_future(registry.watch(0.1))
        mock_models.write(tmp_path, "m")
        deadline = time.monotonic() + 30
        while not registry.cards() and time.monotonic() < deadline:  # noqa: ASYNC110  no event
            await asyncio.sleep(0.05)
        following.cancel()
        assert [card.name for card in registry.cards()] == ["m"]


def write_options(repository: Path, name: str, text: str) -> None:
    """The file beside a model's config."""
    (repository / name / "openai_frontend.yaml").write_text(text)


async def test_composing_models_are_not_listed(tmp_path: Path) -> None:
    """Clients should use the ensemble, which serves."""

    mock_models.write(tmp_path, "part", tokens=["a"], answer_tokens=2)
    mock_models.write_ensemble(tmp_path, "whole")
    request = GenerationRequest(request_id="r", prompt="hi")
    async with serving(tmp_path) as registry:
        names = [card.name for card in registry.cards()]
        answer = [burst async for burst in registry.get("whole").generate(request)]
    assert names == ["whole"]
    assert "".join(delta.text for burst in answer for delta in burst) == "aa"


async def test_request_to_a_composing_model(tmp_path: Path) -> None:
    """The error names the ensemble; the server stays ready."""

    mock_models.write(tmp_path, "part")
    mock_models.write_ensemble(tmp_path, "whole")
    async with serving(tmp_path) as registry:
        with pytest.raises(ModelNotFound, match="'part' is not served: it is a composing"):
            registry.get("part")
        assert registry.card("part").error == "it is a composing model of 'whole'"
        assert registry.is_ready()


async def test_exposed_composing_model(tmp_path: Path) -> None:
    """The option `expose` keeps it available to its clients."""

    mock_models.write(tmp_path, "part")
    write_options(tmp_path, "part", "expose: true")
    mock_models.write_ensemble(tmp_path, "whole")
    async with serving(tmp_path) as registry:
        assert [card.name for card in registry.cards()] == ["part", "whole"]


async def test_configured_ensemble(tmp_path: Path) -> None:
    """A model that calls others itself does not declare them; the option `ensemble` does."""

    for name in ("part", "whole"):
        mock_models.write(tmp_path, name)
    write_options(tmp_path, "part", "ensemble: whole")
    async with serving(tmp_path) as registry:
        assert [card.name for card in registry.cards()] == ["whole"]


async def test_unserved_model(tmp_path: Path) -> None:
    """It is loaded and ready, but no endpoint serves it; requests get the reason."""

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
        ({"chat_template": HERMES}, {"chat": True, "tools": True, "reasoning": False}),
        ({"chat_template": f"{HERMES}</think>"}, {"tools": True, "reasoning": True}),
        ({"chat_template": "<tool_call>"}, {"chat": True, "tools": False}),
        ({"chat_template": None}, {"chat": False, "tools": False}),
    ],
)
async def test_a_template_makes_a_model_chat(
    tmp_path: Path, tokenizer: dict[str, Any], expected: dict[str, bool]
) -> None:
    """Without a template it only completes texts. Tools require a template that uses them,
    and reasoning a format that marks it.
    """

    folder = mock_models.write_with_tokenizer(tmp_path, "m")
    tiny_tokenizer.write(folder, **tokenizer)
    async with serving(tmp_path) as registry:
        found = registry.card("m").capabilities
    assert {name: name in found for name in expected} == expected
    assert ("completions" in found, "images" in found) == (True, False)


async def test_parser_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One line for each chat model with the parser and the reason; a warning if something will not
    work.
    """

    caplog.set_level("INFO")
    templates = {"a": HERMES, "b": tiny_tokenizer.CHATML, "c": None, "d": "<tool_call>"}
    for name, template in templates.items():
        mock_models.write_with_tokenizer(tmp_path, name)
        tiny_tokenizer.write(tmp_path / name / "1" / "tokenizer", chat_template=template)
    async with serving(tmp_path) as registry:
        formats = [registry.get(name).output_format.name for name in "abcd"]

    assert formats == ["hermes", "text", "text", "hermes"]
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


async def test_configured_parser(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The model's own option overrides that for all; an unknown model is logged."""

    for name in ("a", "b"):
        mock_models.write_with_tokenizer(tmp_path, name)
    parsers = {"*": "hermes", "b": "mistral"}
    async with serving(
        tmp_path, tool_call_parser=parsers, reasoning_parser={"nobody": "qwen3"}
    ) as registry:
        formats = [registry.get(name).output_format.name for name in "ab"]

    assert formats == ["hermes", "mistral"]
    assert "reasoning_parser: the model 'nobody' does not exist" in caplog.text
    assert (
        "model a: The chat template does not show tools to the model, so it will not call any."
        in caplog.text
    )


async def test_parser_that_does_not_load(tmp_path: Path) -> None:
    """Only its model fails; the reason names setting and parser."""

    for name in ("a", "b"):
        mock_models.write_with_tokenizer(tmp_path, name)
    async with serving(tmp_path, tool_call_parser={"b": "no:C"}) as registry:
        error = registry.card("b").error
        assert [card.name for card in registry.cards()] == ["a"]
    assert str(error).startswith("its tool_call_parser no:C: ModuleNotFoundError")


async def test_parser_for_all_models(tmp_path: Path) -> None:
    """It does not affect models that embed or have no chat template."""

    for name, tasks in (("a", ["generate"]), ("b", ["embed"])):
        mock_models.write_with_tokenizer(tmp_path, name, tasks=tasks)
    tiny_tokenizer.write(tmp_path / "a" / "1" / "tokenizer", chat_template=None)
    async with serving(tmp_path, tool_call_parser={"*": "no:C"}) as registry:
        assert [card.name for card in registry.cards()] == ["a", "b"]
        assert [registry.get(name).output_format.tools for name in "ab"] == [False, False]


async def test_configured_template_selects_the_parser(tmp_path: Path) -> None:
    """The configured template counts, not the folder's; then the config."""

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
        formats = [registry.get(name).output_format.name for name in "ab"]

    assert formats == ["hermes", "llama3_json"]


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ({"generate"}, {"completions"}),
        ({"embed"}, {"embeddings", "rerank"}),
        ({"score"}, {"rerank"}),
    ],
)
async def test_capabilities(tmp_path: Path, tasks: set[str], expected: set[str]) -> None:
    """Capabilities are tasks for which the model has a contract."""

    mock_models.write(tmp_path, "m")
    contracts = {"generate": "generation", "embed": "embedding", "score": "score"}
    without: dict[str, Any] = dict.fromkeys(contracts[task] for task in contracts.keys() - tasks)
    async with serving(tmp_path) as registry:
        every = registry.get("m")
    model = dataclasses.replace(every, contracts=dataclasses.replace(every.contracts, **without))
    assert model.capabilities() == expected


TEMPLATES = {"*": "chatml", "b": "llama3"}


async def test_template_per_model(tmp_path: Path) -> None:
    """Other models use the template for all, or their tokenizer's."""

    for name in ("a", "b"):
        mock_models.write_with_tokenizer(tmp_path, name)
    async with serving(tmp_path, chat_templates=TEMPLATES) as registry:
        texts = [(await registry.get(name).render_chat([USER])).text for name in ("a", "b")]
    assert ["<|im_start|>" in str(text) for text in texts] == [True, False]


async def test_unreadable_template(tmp_path: Path) -> None:
    """Only its model fails; the reason names the file."""

    for name in ("a", "b"):
        mock_models.write_with_tokenizer(tmp_path, name)
    async with serving(tmp_path, chat_templates={"b": "nope"}) as registry:
        names, error = [card.name for card in registry.cards()], registry.card("b").error
    assert names == ["a"]
    assert error == "its chat template nope: No such file or directory"


async def test_template_for_an_unknown_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A misspelt name is logged once."""

    mock_models.write(tmp_path, "m")
    async with serving(tmp_path, chat_templates={"mm": "chatml", "*": "chatml"}) as registry:
        await registry.refresh()
    assert caplog.messages.count("chat_template: the model 'mm' does not exist") == 1


def test_model_that_is_loaded_again_has_its_ensembles_read_again() -> None:
    """They keep state about it, such as the weights that it has."""
    part: Any = object()
    snapshot = Snapshot(
        loaded_models={("part", 1): part, ("whole", 1): part, ("other", 1): part},
        ensembles_of={"part": ["whole"]},
    )

    assert snapshot.without("part").loaded_models.keys() == {("other", 1)}
