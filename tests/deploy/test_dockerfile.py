"""deploy/docker/Dockerfile: copied files exist, and the images do not run as root."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from openai_frontend.config.loader import options
from scripts import check_images
from scripts.check_images import IMAGES, Image
from scripts.setup import in_image
from scripts.setup.install import lock_files
from tests.deploy.dockerfile import stages

ROOT = Path(__file__).parents[2]
STAGES = stages(ROOT / "deploy/docker/Dockerfile")
BASES = dict(
    re.findall(r"^ARG (\w+_IMAGE)=(.+)$", (ROOT / "deploy/docker/Dockerfile").read_text(), re.M)
)
FINAL = list(IMAGES)


def texts(stage: str, keyword: str) -> list[str]:
    return [each.text for each in STAGES[stage] if each.keyword == keyword]


@pytest.mark.parametrize("stage", FINAL)
def test_image_does_not_run_as_root(stage: str) -> None:
    """The user is a number, so that Kubernetes can check it."""

    assert texts(stage, "USER") == ["10001:10001"]


@pytest.mark.parametrize("stage", FINAL)
def test_entry_point_is_the_declared_script(stage: str) -> None:
    """pyproject.toml declares it."""

    [script] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    started = [json.loads(texts(stage, keyword)[0]) for keyword in ("ENTRYPOINT", "CMD")]
    assert started == [[script], ["serve"]]


@pytest.mark.parametrize("stage", FINAL)
def test_image_sets_only_existing_settings(stage: str) -> None:
    """A misspelt variable would only cause a warning."""

    [env] = texts(stage, "ENV")
    names = {word.partition("=")[0] for word in env.split()}
    ours = {name for name in names if name.startswith("OPENAI_FRONTEND_")}
    assert ours - {option.environment for option in options()} == set()


@pytest.mark.parametrize("stage", STAGES)
def test_copied_files_exist(stage: str) -> None:
    """They are in the repository or in an earlier stage."""

    copies = [each.text.split() for each in STAGES[stage] if each.keyword == "COPY"]
    local = [words[0] for words in copies if not words[0].startswith("--from=")]
    earlier = {words[0].removeprefix("--from=") for words in copies if words[0] not in local}
    missing = [path for path in local if not (ROOT / path).exists()]
    assert (missing, earlier - set(STAGES)) == ([], set())


@pytest.mark.parametrize(
    ("base", "python", "glibc"),
    [("PYTHON_IMAGE", "python:3.11-", 36), ("CUDA_IMAGE", "-ubuntu24.04", 39)],
)
def test_resolved_target_is_the_base(base: str, python: str, glibc: int) -> None:
    """`make check-images` asks pip for the Python and the C library that the base has."""

    image = IMAGES["cpu" if base == "PYTHON_IMAGE" else "gpu"]
    assert python in BASES[base]
    assert (image.python, image.glibc) == ("3.12" if "ubuntu" in python else "3.11", glibc)


@pytest.mark.parametrize(("stage", "engine"), [("cpu", "cpu"), ("gpu", "cuda")])
def test_image_installs_what_is_resolved(stage: str, engine: str) -> None:
    """The locks of `make setup` are those that `make check-images` resolves."""

    [setup] = [text for text in texts(f"{stage}-build", "RUN") if "make setup" in text]
    assert setup.endswith(f"make setup VLLM={engine}")
    assert [path.name for path in lock_files(engine)] == list(IMAGES[stage].locks)


@pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES)
def test_image_has_the_extras(image: Image) -> None:
    """The locks contain them, or `scripts.setup.in_image` installs them beside the gateway."""

    asked = [
        Requirement(text) for name in in_image.EXTRAS for text in in_image.extra_requirements(name)
    ]
    locked = dict(pin.split("==") for pin in check_images.pins(image))
    resolved = [Requirement(text) for text in check_images.ranges()]
    for each in asked:
        assert locked[each.name] in each.specifier if image.locks else each in resolved


def test_vllm_of_the_triton_image_is_in_the_range() -> None:
    """The release that the comment names is one that `scripts.setup.in_image` accepts."""

    text = (ROOT / "deploy/docker/Dockerfile").read_text()
    [(release, vllm)] = re.findall(r"\((\d\d\.\d\d): vLLM (\d+\.\d+)\)", text)
    [wanted] = [
        Requirement(each) for each in in_image.extra_requirements() if in_image.is_vllm(each)
    ]
    assert f":{release}-vllm-" in BASES["TRITON_VLLM_IMAGE"]
    assert f"{vllm}.0" in wanted.specifier


@pytest.mark.parametrize("stage", FINAL)
def test_image_has_the_base_of_its_builder(stage: str) -> None:
    """The environment is copied, so the interpreter and the C library must be the same."""

    assert STAGES[stage][0].text.split()[0] == STAGES[f"{stage}-build"][0].text.split()[0]


@pytest.mark.parametrize("stage", STAGES)
def test_apt_lists_are_removed(stage: str) -> None:
    """The instruction that fetches them removes them, so that no layer contains them."""

    fetching = [text for text in texts(stage, "RUN") if "apt-get update" in text]
    assert [text for text in fetching if not text.endswith("rm -rf /var/lib/apt/lists/*")] == []


@pytest.mark.parametrize("stage", FINAL)
def test_image_health_check_equals_that_of_compose(stage: str) -> None:
    [check] = texts(stage, "HEALTHCHECK")
    assert "http://127.0.0.1:9000/health/ready" in check
