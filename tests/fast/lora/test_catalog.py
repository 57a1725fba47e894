"""The adapters of a model, as its files and folders change."""

import io
import json
import logging
import struct
from pathlib import Path

import numpy
import pytest

from openai_frontend.models.lora.catalog import LoRACatalog, LoRASources, ScanResult
from openai_frontend.models.lora.files import Kind, LoRARequirements
from tests.fast.lora.files import write_peft, write_tensorrt_llm

PEFT = LoRARequirements(kind="peft", max_rank=16, hidden_size=8)
BY_NAME = LoRARequirements(kind=None)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The folder of a model in a repository."""
    folder = tmp_path / "repository" / "base"
    (folder / "1").mkdir(parents=True)
    return folder


def scan(
    sources: LoRASources,
    requirements: LoRARequirements | None = PEFT,
    table: LoRACatalog | None = None,
) -> ScanResult:
    return (table or LoRACatalog()).scan("base", sources, requirements)


def test_all_sources_of_adapters(tmp_path: Path, model: Path) -> None:
    """Adapters come from an option, multi_lora.json and a watched folder; paths are relative to the
    model.
    """
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


def test_ids_follow_name_and_content(model: Path) -> None:
    """Scans return the same object; new content gets a new id, and old content its old id."""
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


def test_hard_links_to_an_adapter_do_not_change_it(tmp_path: Path, model: Path) -> None:
    """Backups and local copies of buckets make and remove them; a reload would cost each time."""
    table, sources = LoRACatalog(), LoRASources(model_folder=model, watched="watched")
    weights = write_peft(model / "watched" / "a") / "adapter_model.safetensors"
    first = scan(sources, table=table).adapters["a"]
    (tmp_path / "backup").hardlink_to(weights)
    linked = scan(sources, table=table).adapters["a"]
    (tmp_path / "backup").unlink()
    unlinked = scan(sources, table=table).adapters["a"]
    (tmp_path / "backup").hardlink_to(weights)
    write_peft(model / "watched" / "a", rank=8)
    changed = scan(sources, table=table).adapters["a"]

    assert linked is unlinked is first
    assert changed.id == 2


def test_folders_appear_and_disappear(model: Path) -> None:
    """Hidden folders and plain files are ignored, and a missing folder is a problem."""
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


def test_name_clash(tmp_path: Path, model: Path) -> None:
    """Neither adapter serves, and the reason names both sources; a folder named twice is no
    clash.
    """
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


def test_invalid_folder_fails_alone(model: Path, caplog: pytest.LogCaptureFixture):
    """Each reason is logged once, and other adapters serve."""
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
def test_invalid_name(tmp_path: Path, model: Path, name: str) -> None:
    """An invalid name is rejected from every source."""
    (model / "1" / "multi_lora.json").write_text(json.dumps({name: str(write_peft(tmp_path))}))

    found = scan(LoRASources(model_folder=model))

    assert not found.adapters
    assert found.problems == {name: "invalid adapter name (from multi_lora.json)"}


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', "null", "[" * 100_000])
def test_invalid_multi_lora_file(model: Path, text: str) -> None:
    """The file is reported as a problem under its own name."""
    (model / "1" / "multi_lora.json").write_text(text)

    (reason,) = scan(LoRASources(model_folder=model)).problems.values()
    assert reason.startswith("multi_lora.json must map names to folders")


def test_backend_with_named_adapters(model: Path) -> None:
    """NVIDIA's vLLM backend reads multi_lora.json itself; its paths may belong to another
    machine.
    """
    (model / "1" / "multi_lora.json").write_text(json.dumps({"a": "/elsewhere/a"}))

    found = scan(LoRASources(model_folder=model, named={"b": "b"}), BY_NAME)

    assert {name: each.path for name, each in found.adapters.items()} == {"a": None}
    assert found.problems == {
        "b": "the model's backend serves only the adapters in multi_lora.json"
    }


def test_model_without_lora_support(tmp_path: Path, model: Path) -> None:
    """An adapter named for the model is a problem; adapter_folder for all models is ignored."""
    write_peft(tmp_path / "all" / "a")

    named = scan(LoRASources(model_folder=model, named={"b": str(tmp_path / "all" / "a")}), None)
    watched = scan(LoRASources(model_folder=model, watched=str(tmp_path / "all")), None)

    assert "enable_lora" in named.problems["b"]
    assert (watched.adapters, watched.problems) == ({}, {})


def test_unloaded_adapter(model: Path) -> None:
    """Scans leave it out until it is loaded again, unchanged."""
    table, sources = LoRACatalog(), LoRASources(model_folder=model, watched="watched")
    write_peft(model / "watched" / "a")
    before = scan(sources, table=table)
    table.unload("base", "a")
    without = scan(sources, table=table)
    table.load("base", "a")
    after = scan(sources, table=table)

    assert (without.adapters, without.unloaded) == ({}, frozenset("a"))
    assert after.adapters == before.adapters


NESTED = b"[" * 100_000
OVERFLOW = b'{"a": {"shape": [1], "data_offsets": [0, 1e999]}}'


def with_header(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def zipped() -> bytes:
    """Arrays that numpy.load opens in another form."""
    file = io.BytesIO()
    numpy.savez(file, numpy.zeros(1))
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("adapter_config.json", NESTED, "adapter_config.json is not JSON: more than 64 levels"),
        ("adapter_config.json", b" " * 2_000_000, "adapter_config.json is longer than 1048576"),
        ("adapter_config.json", b'{"r": 4, "rank_pattern": {"a": ' + b"9" * 5000 + b"}}", "digits"),
        ("adapter_model.safetensors", with_header(NESTED), "is not a valid safetensors file"),
        ("adapter_model.safetensors", with_header(OVERFLOW), "cannot be checked (OverflowError)"),
        ("model.lora_config.npy", zipped(), "cannot be checked (AttributeError)"),
    ],
)
def test_adapter_whose_check_fails_is_refused_alone(
    model: Path, name: str, content: bytes, reason: str
) -> None:
    """However the check fails, in each scan; the other adapters serve."""
    kind: Kind = "tensorrt_llm" if name.endswith("npy") else "peft"
    write = write_peft if kind == "peft" else write_tensorrt_llm
    write(model / "watched" / "good")
    write(model / "watched" / "odd")
    (model / "watched" / "odd" / name).write_bytes(content)
    sources, table = LoRASources(model_folder=model, watched="watched"), LoRACatalog()

    for _ in range(2):
        found = scan(sources, LoRARequirements(kind=kind), table)

        assert list(found.adapters) == ["good"]
        assert reason in found.problems["odd"]


def test_folder_that_no_file_system_has_is_refused_alone(model: Path) -> None:
    write_peft(model / "good")
    sources = LoRASources(model_folder=model, named={"odd": "a\0b", "good": "good"})

    found = scan(sources)

    assert (list(found.adapters), list(found.problems)) == (["good"], ["odd"])
