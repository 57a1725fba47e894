"""docs/tensorrt-llm.md: its table has every tensor of the LLM API model, and says what is sent."""

import json
import re
from pathlib import Path
from typing import Any

from openai_frontend.contracts.output_fields import METRICS
from openai_frontend.contracts.select import ContractOptions, select_contracts
from openai_frontend.generation import Adapter, GenerationRequest, SamplingParams
from openai_frontend.media.modalities import ImageInput, ImageSupport
from tests.fast.contracts.recorded import Letters

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "docs" / "tensorrt-llm.md").read_text().partition("## Tensors of the LLM")[2]
NVIDIAS = json.loads((ROOT / "tests" / "data" / "nvidia_tensors.json").read_text())["llmapi"]
PROCESSOR = "sampling_param_logits_post_processor_name"  # read, but not always declared

# Every field that the contract can send
PARAMS = SamplingParams(
    max_tokens=9,
    temperature=0.5,
    top_p=0.5,
    top_k=5,
    presence_penalty=1.0,
    frequency_penalty=1.0,
    seed=1,
    stop=["a"],
    extra_args={
        "return_perf_metrics": True,
        "return_cumulative_logprob": True,
        "logits_processor": "dates",
    },
)


def rows(title: str) -> dict[str, str]:
    """Tensor -> its description, of the table with this title."""
    table = SECTION.partition(f"| {title} |")[2].partition("\n\n")[0]
    lines = re.findall(r"^\| (`.+?`) \| (.+) \|$", table, re.MULTILINE)
    return {name: text for names, text in lines for name in re.findall(r"`(\w+)`", names)}


def test_table_has_every_tensor() -> None:
    """NVIDIA's config and the input that only its program reads."""

    assert set(rows("input")) == {*NVIDIAS["input"], PROCESSOR}
    assert set(rows("output")) == set(NVIDIAS["output"])


def test_inputs_are_sent_as_the_table_says() -> None:
    """A request with every field fills all inputs except those that the table excludes."""

    sent = {name for name, text in rows("input").items() if not text.startswith("not sent: ")}
    assert set(encode(NVIDIAS["input"])) == sent
    assert set(rows("input")) - sent == {"lora_ckpt_source", "sampling_param_best_of", "stop"}


def test_outputs_are_read_as_the_table_says() -> None:
    """Numbers of the request's performance are in its usage."""

    measured = {name for name, text in rows("output").items() if "performance" in text}
    assert measured <= set(METRICS)
    assert set(NVIDIAS["output"]) - measured == {"text_output", "finish_reason", "stop_reason"}


def encode(inputs: dict[str, Any]) -> dict[str, Any]:
    """The tensors of a request with every field, to NVIDIA's model."""
    named = {**inputs, PROCESSOR: {"data_type": "TYPE_STRING", "dims": [1], "optional": True}}
    config = {
        side: [{"name": name, **facts} for name, facts in tensors.items()]
        for side, tensors in (("input", named), ("output", NVIDIAS["output"]))
    }
    options = ContractOptions(images=ImageSupport(), logits_processors=["dates"])
    chosen = select_contracts(config, options=options, decoupled=True, vocabulary=Letters())
    assert chosen.generation is not None
    request = GenerationRequest(
        request_id="r",
        prompt="Hi",
        prompt_token_ids=[1, 2],
        sampling_params=PARAMS,
        stream=True,
        adapter=Adapter(name="x", id=7, path=Path("/loras/x")),
        images=[ImageInput(base64="AA==", digest="0", width=1, height=1, format="png")],
    )
    return dict(chosen.generation.encode(request))
