"""Derives the report of a model from its files. Starts nothing, downloads nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import chat_templates
from openai_frontend.cli.check import load_checks
from openai_frontend.cli.check.report import Report
from openai_frontend.cli.init_repo.options import is_hub_name
from openai_frontend.cli.model_directory import ModelDirectory
from openai_frontend.config.model_options import ModelOptions
from openai_frontend.contracts import Contract
from openai_frontend.contracts.derived_outputs import DERIVED
from openai_frontend.contracts.select import (
    ContractOptions,
    SelectedContracts,
    audio_support,
    image_support,
    select_contracts,
    takes_text,
)
from openai_frontend.errors import ModelUnavailable
from openai_frontend.generation import SamplingParams
from openai_frontend.media.modalities import AudioSupport, ImageSupport, TranscriptionSupport
from openai_frontend.model_facts import ModelFacts
from openai_frontend.models import model_files
from openai_frontend.models.lora.catalog import LoRACatalog, LoRASources
from openai_frontend.models.lora.files import LoRARequirements
from openai_frontend.models.lora.models import SEPARATOR
from openai_frontend.models.moderation import moderation_policy
from openai_frontend.models.parser_selection import (
    SETTINGS,
    ModelFiles,
    limitations,
    select_parser,
    template_for_tools,
)
from openai_frontend.prompting import chat_template, tokenizer
from openai_frontend.prompting.chat_template import ChatTemplate
from openai_frontend.prompting.prompt import PromptBuilder
from openai_frontend.prompting.tokenizer import Tokenizer
from openai_frontend.serving.request.sampling import REQUEST_NAMES

_CONSTRAINTS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")

# Names of contract features that differ from request fields
_REQUEST_FIELDS = {**REQUEST_NAMES, "structured_outputs": "response_format"}
# Request fields besides the sampling parameters
_BESIDE = ("priority", "cache_salt", "return_token_ids")
_NO_FIELDS = {"max_tokens"}  # every request has a limit

_MAY_NAME_IT = "set `tokenizer` to its folder in openai_frontend.yaml"

_UNKNOWN = "unknown until its files are downloaded"
_SPLIT_CHARACTERS = (
    "Characters of several tokens (other scripts, emoji) in streams and with log probabilities: "
    "the ensemble detokenizes each response alone and writes U+FFFD. Use tensorrt_llm_bls."
)


def fill(
    report: Report,
    folder: ModelDirectory,
    role: str = "both",
) -> None:
    """Fills in as much of the report as the files allow. `role` is the server's.

    Raises ModelUnavailable if the model cannot be served.
    """
    report.model = folder.name
    _check_version(folder)
    report.aliases = folder.options.aliases
    report.versions = folder.versions
    report.ensemble = folder.options.ensemble or ""
    report.expose = folder.options.expose
    report.steps = model_files.composing_models(folder.config)
    files = folder.facts()
    report.max_model_len = (
        folder.options.max_model_len or files.max_model_len or load_checks.longest(folder)
    )
    tokenizer_path = folder.options.tokenizer or files.tokenizer
    place = Path(tokenizer_path) if tokenizer_path else None
    loaded = _tokenizer(report, folder, place)
    prompts = None
    if loaded is not None and place is not None:
        prompts = _fill_in_reading(report, folder, place, loaded)
    facts = load_checks.described(folder) or files
    generates = _fill_in_contract(report, folder, prompts, facts)
    if not generates:  # nothing is said about chats, tools and reasoning
        report.will_not_work, report.why = [], []
        report.tool_calls = report.reasoning = report.chat_template = ""
    report.audio = _audio(facts.transcription)
    report.limitations = load_checks.check_engine(folder, role)


def _check_version(folder: ModelDirectory) -> None:
    """Triton ignores a model without a version."""
    version = folder.version()
    if version is None:
        raise ModelUnavailable(f"{folder.path} has no version folder, such as 1")
    program = version / str(folder.config.get("default_model_filename") or "model.py")
    if folder.backend == "python" and not program.is_file():
        raise ModelUnavailable(f"{program} is missing")


def _tokenizer(report: Report, folder: ModelDirectory, place: Path | None) -> Tokenizer | None:
    """Loads the tokenizer. One named only by another backend's files may be missing here."""
    report.tool_calls = report.reasoning = "none"
    if place is not None and place.is_dir():
        return _loaded(report, folder, place)
    if place is None:
        report.tokenizer = f"none found; {_MAY_NAME_IT}"
    elif folder.engine is None:
        report.tokenizer = f"{place}, not on this machine; {_MAY_NAME_IT}"
    elif is_hub_name(str(place)):
        report.tokenizer = f"{place}, not downloaded yet"
        report.tool_calls = report.reasoning = _UNKNOWN
        return None
    else:
        raise ModelUnavailable(f"{place} does not exist")
    report.will_not_work.append("Chat and tools: they need a tokenizer.")
    return None


def _loaded(report: Report, folder: ModelDirectory, place: Path) -> Tokenizer | None:
    """A broken tokenizer named only by another backend's files does not prevent serving."""
    report.tokenizer = str(place)
    try:
        return tokenizer.load(place)
    except ModelUnavailable as error:
        if folder.engine is not None or folder.options.tokenizer:
            raise
        report.will_not_work.append(f"Chat: {error.message}.")
    return None


def _fill_in_reading(
    report: Report, folder: ModelDirectory, place: Path, loaded: Tokenizer
) -> PromptBuilder:
    """Chat template, and the parser of tool calls and reasoning."""
    report.chat_template, template = _template(loaded, folder.options)
    if template is None:
        report.will_not_work.append("Chat: it needs a chat template.")
    else:
        ChatTemplate(template, loaded.special_tokens)
    files = ModelFiles(folder=place, chat_template=template)
    named = {
        each: parser for each in SETTINGS if (parser := getattr(folder.options, each)) is not None
    }
    reading = select_parser(files, named)
    report.tool_calls = reading.name if reading.tools else "none"
    report.reasoning = reading.name if reading.reasoning else "none"
    report.why = reading.evidence
    report.will_not_work += limitations(reading, files)
    return PromptBuilder(loaded, chat_template=template, max_model_len=report.max_model_len)


def _template(loaded: Tokenizer, options: ModelOptions) -> tuple[str, str | None]:
    """The template's source and text."""
    chosen = options.chat_template
    if chosen is not None:
        kind = "built in" if chosen in chat_templates.names() else "a file"
        return f"{chosen}, {kind}, set by chat_template", chat_template.read(chosen)
    template = template_for_tools(loaded.chat_templates)
    if template is None:
        return "none", None
    purpose = "tool_use" if "tool_use" in loaded.chat_templates else "default"
    return f"the tokenizer's own ({purpose})", template


def _images(
    chosen: SelectedContracts, reported: ImageSupport | None, prompts: PromptBuilder | None
) -> str:
    support = image_support(chosen, reported)
    if support is None:
        return "none"
    most = _most(support)
    if support.takes_question:
        return f"{most}, of one message; the model applies its own chat template"
    written = _placeholder("image", chosen, support, prompts)
    if written is None:
        return "none: the chat template writes nothing for an image"
    return f"{most}; the chat template writes {written!r}"


def _most(support: ImageSupport | AudioSupport) -> str:
    """An engine in process sets its limit when it is loaded; `/v1/models` then has it."""
    if support.max_per_request is None:
        return "no limit in its files"
    return f"at most {support.max_per_request} per request"


def _placeholder(
    kind: str,
    chosen: SelectedContracts,
    support: ImageSupport | AudioSupport,
    prompts: PromptBuilder | None,
) -> str | None:
    if prompts is None:
        return None
    written = prompts.take_media(kind, support.placeholder, as_text=takes_text(chosen))
    return None if written is None else written.text


def _input_audio(
    chosen: SelectedContracts, reported: AudioSupport | None, prompts: PromptBuilder | None
) -> str:
    support = audio_support(chosen, reported)
    if support is None:
        return ""
    written = _placeholder("audio", chosen, support, prompts)
    if written is None:
        return "none, unless the engine knows a placeholder: the chat template writes nothing"
    return f"{_most(support)}; the chat template writes {written!r}"


def _audio(support: TranscriptionSupport | None) -> str:
    """Audio input of a transcription model."""
    if support is None:
        return ""
    spoken = ", ".join(sorted(support.languages)) or "en"
    abilities = ["writes times"] * support.timestamps
    abilities += ["translates into English"] * support.translation
    return (
        f"at most {support.window_seconds:g} s at {support.sample_rate} Hz per request to the"
        f" engine; languages {spoken}" + "".join(f"; {each}" for each in abilities)
    )


def _fill_in_contract(
    report: Report,
    folder: ModelDirectory,
    prompts: PromptBuilder | None,
    facts: ModelFacts,
) -> bool:
    """Returns whether the model may generate text."""
    try:
        chosen = select_contracts(
            folder.config,
            tasks=facts.tasks,
            options=ContractOptions(
                name=folder.options.contract,
                tensors=folder.options.tensors,
                images=facts.images,
                audio=facts.audio,
                logits_processors=facts.logits_processors,
                labels=folder.options.labels or facts.labels,
            ),
            decoupled=folder.is_decoupled(),
            vocabulary=prompts,
        )
    except ModelUnavailable as error:
        report.no_endpoint, report.contract = True, f"none: {error.message}"
        return False
    report.contract = f"{chosen.name}. {chosen.reason}"
    if folder.engine is not None and facts.tasks is None:
        report.contract += " Its engine decides which of the following it serves."
    if folder.engine == "vllm" and facts.tasks is None and not _is_here(folder.weights()):
        report.contract, report.serves = chosen.name, [_UNKNOWN]
        return True
    report.images = _images(chosen, facts.images, prompts)
    report.input_audio = _input_audio(chosen, facts.audio, prompts)
    report.serves = _serves(chosen, chats=prompts is not None and prompts.can_chat)
    if folder.options.moderation is not None:
        labels = folder.options.labels or facts.labels
        moderation_policy(folder.options.moderation, labels if chosen.classification else None)
        report.serves.append("moderations")
    if chosen.generation is not None:
        _fill_in_generation(report, folder, chosen.generation)
        if chosen.name == "tensorrt_llm" and _splits_characters(folder):
            report.will_not_work.append(_SPLIT_CHARACTERS)
    return chosen.generation is not None


def _splits_characters(folder: ModelDirectory) -> bool:
    """Whether TensorRT-LLM's `postprocessing` detokenizes each response alone."""
    return folder.is_decoupled() and folder.config.get("platform") == "ensemble"


def _fill_in_generation(report: Report, folder: ModelDirectory, contract: Contract) -> None:
    streams = contract.supports("stream")
    report.streams = "yes" if streams else "as one chunk at the end: the model sends one response"
    report.derived = [DERIVED[name] for name in DERIVED if name in contract.derives]
    report.refused = _refused(contract)
    report.constraints = _constraints(folder, contract)
    if report.constraints and _lacks_guidance(folder.parts(report.steps)):
        report.constraints = []
        report.will_not_work.append(
            "Constraints: guided_decoding_backend of the engine is not set, so it rejects them."
        )
    names, problems = _adapters(folder, contract)
    report.adapters = names
    report.will_not_work += problems


def _is_here(weights: Path | None) -> bool:
    return weights is not None and weights.is_dir()


def _serves(chosen: SelectedContracts, *, chats: bool) -> list[str]:
    texts = ["chat completions"] if chats and chosen.generation else []
    return [
        *texts,
        *(["completions"] if chosen.generation else []),
        *(["embeddings"] if chosen.embedding else []),
        *(["rerank", "score"] if chosen.score else []),
        *(["classify"] if chosen.classification else []),
        *(["embed_sparse"] if chosen.sparse else []),
        *(["pooling"] if chosen.tokens else []),
    ]


def _refused(contract: Contract) -> list[str]:
    names = [*_BESIDE, *(each.name for each in fields(SamplingParams))]
    refused = [name for name in names if name not in _NO_FIELDS and not contract.supports(name)]
    return [_REQUEST_FIELDS.get(name, name) for name in refused]


def _constraints(folder: ModelDirectory, contract: Contract) -> list[str]:
    """Constraints that are known to be enforced. Other engines in process may ignore them."""
    if folder.engine not in (None, "vllm") or not contract.supports("structured_outputs"):
        return []
    return [each for each in _CONSTRAINTS if contract.supports(f"structured_outputs.{each}")]


def _lacks_guidance(parts: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a TensorRT-LLM engine among the steps has no guided decoding backend."""
    return any(
        model_files.parameter(part, "guided_decoding_backend") is None
        for part in parts
        if part.get("backend") == "tensorrtllm"
    )


_VLLM_MAX_RANK = 16  # vLLM's default


def _adapters(folder: ModelDirectory, contract: Contract) -> tuple[list[str], list[str]]:
    """The names of LoRA adapters in requests, and a sentence for each that cannot be served."""
    sources = LoRASources(
        model_folder=folder.path,
        version=max(folder.versions),
        named=folder.options.adapters,
        watched=folder.options.adapter_folder,
    )
    adapters = LoRACatalog().scan(folder.name, sources, _requirements(folder, contract))
    return (
        [f"{folder.name}{SEPARATOR}{name}" for name in adapters.adapters],
        [f"LoRA adapter '{name}': {why}." for name, why in adapters.problems.items()],
    )


def _requirements(folder: ModelDirectory, contract: Contract) -> LoRARequirements | None:
    """Requirements for the model's LoRA adapters; for an in-process engine, model.json decides."""
    if not contract.supports("adapter"):
        return None
    if folder.engine is not None:
        rank = folder.arguments.get("max_lora_rank", _VLLM_MAX_RANK)
        on = str(folder.arguments.get("enable_lora", False)).lower() == "true"
        return LoRARequirements(kind="peft", max_rank=rank) if on else None
    if contract.supports("adapter_weights"):
        return LoRARequirements(kind="tensorrt_llm")
    return LoRARequirements(kind="peft" if contract.supports("adapter_path") else None)
