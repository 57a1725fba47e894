"""Which adapters a model has, as its files and folders change."""

import json
import logging
from pathlib import Path

import pytest

from openai_frontend.lora.catalog import LoRACatalog, LoRASources, ScanResult
from openai_frontend.lora.files import LoRARequirements
from tests.lora.files import write_peft

PEFT = LoRARequirements(kind="peft", max_rank=16, hidden_size=8)
BY_NAME = LoRARequirements(kind=None)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's folder in a repository."""
    folder = tmp_path / "repository" / "base"
    (folder / "1").mkdir(parents=True)
    return folder


def scan(
    sources: LoRASources,
    requirements: LoRARequirements | None = PEFT,
    table: LoRACatalog | None = None,
) -> ScanResult:
    return (table or LoRACatalog()).scan("base", sources, requirements)


def test_all_three_ways_of_naming_an_adapter(tmp_path: Path, model: Path) -> None:
    """By an option, beside model.json, and by lying in a folder; relative ones in the model's."""
    write_peft(model / "own" / "a")
    write_peft(tmp_path / "b")
    write_peft(model / "watched" / "c")
    (model / "1" / "multi_lora.json").write_text(json.dumps({"b": str(tmp_path / "b")}))

    found = scan(LoRASources(model_folder=model, named={"a": "own/a"}, watched="watched"))

    assert not found.problems
    assert {name: each.path for name, each in found.adapters.items()} == {
        "a": model / "own" / "a",
        "b": tmp_path / "b",
        "c": model / "watched" / "c",
    }
    assert sorted(each.id for each in found.adapters.values()) == [1, 2, 3]


def test_ids_stay_with_name_and_content(model: Path) -> None:
    """The same object at each look; another content has another id, and its former one again."""
    table, sources = LoRACatalog(), LoRASources(model_folder=model, watched="watched")
    folder = write_peft(model / "watched" / "a")
    first = scan(sources, table=table).adapters["a"]
    again = scan(sources, table=table).adapters["a"]
    write_peft(folder, rank=8)
    changed = scan(sources, table=table).adapters["a"]
    folder.rename(model / "watched" / "b")
    renamed = scan(sources, table=table).adapters["b"]

    assert again is first
    assert (first.id, changed.id, renamed.id) == (1, 2, 3)


def test_a_folder_may_come_and_go(model: Path) -> None:
    """What starts with a dot is on its way; a file is none, and neither is the folder's absence."""
    table, sources = LoRACatalog(), LoRASources(model_folder=model, watched="watched")
    absent = scan(sources, table=table)
    write_peft(model / "watched" / ".a.part")
    (model / "watched" / "readme").write_text("")
    coming = scan(sources, table=table)
    (model / "watched" / ".a.part").rename(model / "watched" / "a")
    come = scan(sources, table=table)

    assert "cannot read adapter_folder: No such file" in absent.problems["watched"]
    assert (coming.adapters, coming.problems) == ({}, {})
    assert set(come.adapters) == {"a"}


def test_two_adapters_of_one_name(tmp_path: Path, model: Path) -> None:
    """Neither serves, and the reason names both sources; one folder that is named twice is one."""
    write_peft(model / "watched" / "a")
    write_peft(model / "watched" / "same")
    write_peft(tmp_path / "other")
    named = {"a": str(tmp_path / "other"), "same": "watched/same"}

    found = scan(LoRASources(model_folder=model, named=named, watched="watched"))

    assert set(found.adapters) == {"same"}
    assert found.problems == {
        "a": "two adapters have this name: "
        "one from the option 'adapters', one from the option 'adapter_folder'"
    }


def test_a_bad_folder_is_alone_with_its_reason(model: Path, caplog: pytest.LogCaptureFixture):
    """It is logged once for each reason, and its neighbour serves."""
    table, sources = LoRACatalog(), LoRASources(model_folder=model, watched="watched")
    write_peft(model / "watched" / "good")
    (model / "watched" / "bad").mkdir()

    with caplog.at_level(logging.ERROR):
        found = scan(sources, table=table)
        scan(sources, table=table)
    (model / "watched" / "bad" / "adapter_config.json").write_text("{")
    later = scan(sources, table=table)

    assert set(found.adapters) == set(later.adapters) == {"good"}
    assert found.problems == {"bad": "adapter_config.json is missing"}
    assert later.problems == {"bad": "adapter_model.safetensors is missing"}
    assert [record.getMessage() for record in caplog.records].count(
        "adapter base:bad cannot serve: adapter_config.json is missing"
    ) == 1


@pytest.mark.parametrize("name", ["../a", "a/b", "a:b", "", "-"])
def test_a_name_that_is_none(tmp_path: Path, model: Path, name: str) -> None:
    """Whoever gives it, it names no adapter."""
    (model / "1" / "multi_lora.json").write_text(json.dumps({name: str(write_peft(tmp_path))}))

    found = scan(LoRASources(model_folder=model))

    assert not found.adapters
    assert found.problems == {name: "invalid adapter name (from multi_lora.json)"}


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', "null"])
def test_a_multi_lora_file_that_is_none(model: Path, text: str) -> None:
    """It is a problem of its own, under its name."""
    (model / "1" / "multi_lora.json").write_text(text)

    (reason,) = scan(LoRASources(model_folder=model)).problems.values()
    assert reason.startswith("multi_lora.json must map names to folders")


def test_a_backend_that_knows_adapters_by_name(model: Path) -> None:
    """NVIDIA's vLLM backend reads multi_lora.json itself: its paths may be of another machine."""
    (model / "1" / "multi_lora.json").write_text(json.dumps({"a": "/elsewhere/a"}))

    found = scan(LoRASources(model_folder=model, named={"b": "b"}), BY_NAME)

    assert {name: each.path for name, each in found.adapters.items()} == {"a": None}
    assert found.problems == {
        "b": "the model's backend serves only the adapters in multi_lora.json"
    }


def test_a_model_that_takes_no_adapters(tmp_path: Path, model: Path) -> None:
    """An adapter that is named for it is told so; a folder of all models is not about it."""
    write_peft(tmp_path / "all" / "a")

    named = scan(LoRASources(model_folder=model, named={"b": str(tmp_path / "all" / "a")}), None)
    watched = scan(LoRASources(model_folder=model, watched=str(tmp_path / "all")), None)

    assert "enable_lora" in named.problems["b"]
    assert (watched.adapters, watched.problems) == ({}, {})


def test_an_adapter_that_was_unloaded(model: Path) -> None:
    """Its folder does not bring it back; loading it does, as it was."""
    table, sources = LoRACatalog(), LoRASources(model_folder=model, watched="watched")
    write_peft(model / "watched" / "a")
    before = scan(sources, table=table)
    table.unload("base", "a")
    without = scan(sources, table=table)
    table.load("base", "a")
    after = scan(sources, table=table)

    assert (without.adapters, without.unloaded) == ({}, frozenset("a"))
    assert after.adapters == before.adapters
