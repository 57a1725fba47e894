"""deploy/docker/Dockerfile: what it copies exists, and its images run as nobody special."""

import json
import tomllib
from pathlib import Path

import pytest

from openai_frontend.config.options import options
from tests.deploy.dockerfile import Instruction, stages

ROOT = Path(__file__).parents[2]
STAGES = stages(ROOT / "deploy/docker/Dockerfile")
FINAL = ["cpu", "gpu"]


def texts(stage: str, keyword: str) -> list[str]:
    return [each.text for each in STAGES[stage] if each.keyword == keyword]


def test_the_stages_are_two_images_and_their_builders() -> None:
    """Each final stage has a builder whose tools it leaves behind."""

    assert list(STAGES) == ["cpu-build", "cpu", "gpu-build", "gpu"]


@pytest.mark.parametrize("stage", FINAL)
def test_an_image_runs_as_an_ordinary_user(stage: str) -> None:
    """A number, so that Kubernetes can see that it is not root."""

    assert texts(stage, "USER") == ["10001:10001"]


@pytest.mark.parametrize("stage", FINAL)
def test_an_image_starts_the_command(stage: str) -> None:
    """The entry point is the script that pyproject.toml declares."""

    [script] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    started = [json.loads(texts(stage, keyword)[0]) for keyword in ("ENTRYPOINT", "CMD")]
    assert started == [[script], ["serve"]]


@pytest.mark.parametrize("stage", FINAL)
def test_an_image_sets_only_settings_that_exist(stage: str) -> None:
    """A misspelt variable would be ignored with a warning."""

    [env] = texts(stage, "ENV")
    names = {word.partition("=")[0] for word in env.split()}
    ours = {name for name in names if name.startswith("OPENAI_FRONTEND_")}
    assert ours - {option.environment for option in options()} == set()


@pytest.mark.parametrize("stage", FINAL)
def test_an_image_asks_the_gateway_whether_it_is_ready(stage: str) -> None:
    """The image's own health check is the one of compose."""

    [check] = texts(stage, "HEALTHCHECK")
    assert "http://127.0.0.1:9000/health/ready" in check


@pytest.mark.parametrize("stage", STAGES)
def test_what_is_copied_exists(stage: str) -> None:
    """Sources from the repository are in the repository; others come from a stage above."""

    copies = [each.text.split() for each in STAGES[stage] if each.keyword == "COPY"]
    local = [words[0] for words in copies if not words[0].startswith("--from=")]
    earlier = {words[0].removeprefix("--from=") for words in copies if words[0] not in local}
    missing = [path for path in local if not (ROOT / path).exists()]
    assert (missing, earlier - set(STAGES)) == ([], set())


@pytest.mark.parametrize("stage", STAGES)
def test_package_lists_do_not_stay_in_a_layer(stage: str) -> None:
    """apt's lists are removed in the instruction that fetched them."""

    fetching = [text for text in texts(stage, "RUN") if "apt-get update" in text]
    assert [text for text in fetching if not text.endswith("rm -rf /var/lib/apt/lists/*")] == []


def test_both_base_images_can_be_chosen() -> None:
    """Neither release is fixed: each FROM takes an argument with a tag as default."""

    bases = {stage[0].text.split()[0] for stage in STAGES.values()}
    assert bases == {"${PYTHON_IMAGE}", "${TRITON_IMAGE}"}


def test_a_stage_begins_with_its_base() -> None:
    """The reader of these tests finds the instructions of a Dockerfile as they stand."""

    assert STAGES["cpu"][0] == Instruction("FROM", "${PYTHON_IMAGE} AS cpu")
