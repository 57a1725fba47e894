"""The tensors of TensorRT-LLM's LLM-API model, which runs in Triton's python backend. A table."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from openai_frontend.contracts.field_tensors import FieldTensors
from openai_frontend.contracts.layout import Known, Layout, Values
from openai_frontend.contracts.tensorrt_llm_sampling import tell_sampling
from openai_frontend.contracts.vocabulary import Vocabulary
from openai_frontend.generation import GenerationRequest

_PROCESSOR = "sampling_param_logits_post_processor_name"


def llmapi(
    config: Mapping[str, Any],
    *,
    tensors: Mapping[str, str] = MappingProxyType({}),
    decoupled: bool,
    vocabulary: Vocabulary | None,
) -> FieldTensors:
    """The contract of one model, not yet completed by `Derived`."""
    return FieldTensors(
        config, _LAYOUT, tensors=tensors, decoupled=decoupled, vocabulary=vocabulary
    )


def _tell(request: GenerationRequest, values: Values, known: Known) -> None:
    """What does not go as it is."""
    tell_sampling(request.sampling_params, values, known.inputs, prefix="sampling_param_")
    adapter = request.adapter
    if adapter is not None:
        values["lora_id"] = [adapter.id]
        values["lora_name"] = [adapter.name]
        values["lora_path"] = [str(adapter.path or "")]


_LAYOUT = Layout(
    fields={
        each: f"sampling_param_{each}"
        for each in (
            "max_tokens",
            "temperature",
            "top_p",
            "top_k",
            "presence_penalty",
            "frequency_penalty",
            "seed",
            "stop",
        )
    },
    told={
        "adapter": ("lora_id", "lora_name", "lora_path"),
        "adapter_path": ("lora_path",),
    },
    tell=_tell,
    flags=(
        "sampling_param_exclude_input_from_output",
        "return_finish_reason",
        "return_stop_reason",
    ),
    stream="streaming",
    # a stop text is matched by its tokens, and missed where the answer spells it by others
    derives=frozenset({"deltas", "stop"}),
    keeps_stop_texts=False,
    # a constraint's plug-in says `logits_processor`, and the model knows what goes by that name
    extra_args={
        "logits_processor": (_PROCESSOR, str),
        "return_perf_metrics": ("sampling_param_return_perf_metrics", bool),
    },
    adds_special_tokens=True,
)
