"""The models of a soak; each behaves as its scenarios expect."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from scripts.soak import leaking_engine
from tests import mock_models
from tests.api.routers import test_tools
from tests.core.triton import python_models
from tests.fast.lora.files import write_peft
from tests.gateway_process import ROOT

TEXT = " token"
ANSWER_TOKENS = 24
FAILS_AFTER = 3
WINDOW_S = 4.0
ENGINES = ("demo", "demo-vision", "demo-speech")
HEARS_CHATS = "tiny-audio"
ADAPTER = "style"
CALL = test_tools.tool_call("get_weather", city="Paris")

LEAKING = mock_models.CONFIG.replace('"mock"', f'"{leaking_engine.__name__}:LeakingEngine"')


def write(repository: Path, *, leak_bytes: int = 0, engine: bool = False) -> None:
    """`talker` answers at once, `slow` at 50 tokens per second; scenarios load and unload `spare`;
    `ensemble` has two Python models, `bytes` is one; `sees` takes images, `hears` audio. With
    `engine`, `demo`, `demo-vision` and `demo-speech` are vLLM's, and so is `tiny-audio`, which
    takes audio in chats.
    """
    told: dict[str, Any] = {"answer_tokens": ANSWER_TOKENS, "tokens": [TEXT]}
    leak: dict[str, Any] = {"config": LEAKING, "leak_bytes": leak_bytes} if leak_bytes else {}
    mock_models.write_with_tokenizer(repository, "talker", max_lora_rank=16, **told, **leak)
    mock_models.write_with_tokenizer(repository, "slow", tokens=[TEXT], tokens_per_second=50)
    mock_models.write_with_tokenizer(repository, "failing", fail_after_tokens=FAILS_AFTER)
    mock_models.write_with_tokenizer(repository, "embedder", tasks=["embed"])
    mock_models.write_with_images(repository, "sees")
    mock_models.write_with_tokenizer(
        repository, "hears", audio_window_s=WINDOW_S, answer_tokens=1, tokens=[TEXT]
    )
    write_spare(repository, 0)
    test_tools.write(repository, "caller", "hermes", CALL)
    adapters = repository / "talker" / "adapters"
    (repository / "talker" / "openai_frontend.yaml").write_text("adapter_folder: adapters\n")
    write_peft(adapters / ADAPTER)
    for part in ("first", "second"):
        python_models.write(repository, part)
    python_models.write_ensemble(repository)
    python_models.write(repository, "bytes", inputs={"IN": "UINT8"})
    for name in ENGINES if engine else ():
        shutil.copytree(
            ROOT / "model_repository" / name,
            repository / name,
            ignore=shutil.ignore_patterns("openai_frontend.yaml"),  # all are loaded at start
        )
    if engine:
        # in a process of its own: torch would take memory of this one
        module, folder = "tests.vllm.tiny_audio_model", str(repository / HEARS_CHATS)
        command = [sys.executable, "-m", module, folder]
        subprocess.run(command, check=True, cwd=ROOT)
        for name in ("demo-vision", "demo-speech", HEARS_CHATS):
            _fill_caches_soon(repository / name)


def _fill_caches_soon(model: Path) -> None:
    """Otherwise new images and audio would add memory for as long as a leak would."""
    config, arguments = model / "config.pbtxt", model / "1" / "model.json"
    sizes = [
        f'parameters {{ key: "{modality}_cache_mib" value: {{ string_value: "2" }} }}\n'
        for modality in ("image", "audio")
    ]
    config.write_text(config.read_text() + "".join(sizes))
    small = {**json.loads(arguments.read_text()), "mm_processor_cache_gb": 0.002}
    arguments.write_text(json.dumps(small))


def write_spare(repository: Path, generation: int) -> None:
    """Change the model's files: the core reloads a model only if they have changed."""
    mock_models.write_with_tokenizer(
        repository, "spare", tokens=[TEXT], answer_tokens=ANSWER_TOKENS,
        max_model_len=4096 + generation % 1000,
    )  # fmt: skip
