"""Builds a served model from a Triton model's config, its files and the operator's options.

Reads files, so it runs in a thread.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from openai_frontend.admission.queue import triton_queue
from openai_frontend.config.model_options import ModelOptions
from openai_frontend.contracts import Contract
from openai_frontend.contracts.select import (
    ContractOptions,
    SelectedContracts,
    audio_support,
    image_support,
    select_contracts,
    takes_text,
)
from openai_frontend.errors import GatewayError, ModelUnavailable
from openai_frontend.media.modalities import AudioSupport, ImageSupport
from openai_frontend.metrics.gateway import GatewayMetrics
from openai_frontend.model_facts import ModelFacts
from openai_frontend.models import model_files
from openai_frontend.models.lora.weights_upload import UploadLog, WeightsUploader
from openai_frontend.models.model_files import ModelSource
from openai_frontend.models.model_use import ModelUses
from openai_frontend.models.moderation import ModerationPolicy, moderation_policy
from openai_frontend.models.parser_selection import (
    SETTINGS,
    ModelFiles,
    select_parser,
    template_for_tools,
    warning,
)
from openai_frontend.models.remote_prefill import RemotePrefill, role_problem
from openai_frontend.models.served_model import ServedModel
from openai_frontend.models.snapshot import LoadedModel, Unservable
from openai_frontend.parsing.output_format import PLAIN, OutputFormat
from openai_frontend.prefix_cache.salts import CacheSalts
from openai_frontend.prompting import chat_template, tokenizer
from openai_frontend.prompting.prompt import PromptBuilder
from openai_frontend.prompting.tokenizer import Tokenizer, TokenizerPool
from openai_frontend.triton import Server

logger = logging.getLogger(__name__)

_TOKENIZER_QUEUE = 256  # prompts that wait for a thread; beyond it, requests get 503


class ModelLoader:
    """Builds the served models of a server."""

    def __init__(
        self,
        server: Server,
        *,
        tokenizer_threads: int = 2,
        metrics: GatewayMetrics | None = None,  # None creates its own
        role: str = "both",
        remote_prefill: RemotePrefill | None = None,  # None: engines compute their own prompts
        cache_salts: CacheSalts | None = None,  # None: with a secret of its own
    ) -> None:
        self._server = server
        self._pool = TokenizerPool(threads=tokenizer_threads, queue=_TOKENIZER_QUEUE)
        self.uses = ModelUses()
        self._metrics = metrics or GatewayMetrics()
        self._role = role
        self._remote_prefill = remote_prefill
        self.cache_salts = cache_salts or CacheSalts()
        self._uploads = UploadLog()

    def load(
        self, name: str, version: int, options: ModelOptions, before: LoadedModel | None
    ) -> LoadedModel:
        """Build the model, or return `before` if nothing has changed.

        Raises ModelUnavailable with the reason if the model cannot serve.
        """
        config = self._server.model_config(name, version)
        engine_facts = self._server.model_facts(name, version)
        if before is not None and before.is_unchanged(config, engine_facts, options):
            return before
        facts = replace(
            self._read_facts(name, version, config, engine_facts, options),
            **_facts_from_options(options),
        )
        certain = engine_facts is not None or bool(options.tokenizer)
        _check_sleep(options, facts)
        loaded = _tokenizer(name, facts, certain=certain, use_fastokens=options.use_fastokens)
        prompts, files = _prompts(loaded, facts, options)
        decoupled = self._server.model_is_decoupled(name, version)
        contracts = _select_contracts(config, facts, options, prompts, decoupled=decoupled)
        model = ServedModel(
            name=name,
            model_name=name,
            version=version,
            version_label=str(version),
            created=int(time.time()),
            fingerprint=self._fingerprint(name, version, config),
            facts=_with_media(name, facts, contracts, prompts),
            in_process=engine_facts is not None,
            contracts=contracts,
            prompts=prompts,
            output_format=_output_format(name, files, options) if contracts.generation else PLAIN,
            reasoning_effort_map=options.reasoning_effort_map,
            pool=self._pool,
            server=self._server,
            metrics=self._metrics,
            use=self.uses[name],
            max_output_tokens=options.max_output_tokens,
            concurrency_limits=options.concurrency_limits,
            triton_queue=triton_queue(config),
            weights_uploader=self._weights_uploader(contracts.generation),
            remote_prefill=self._remote_prefill if facts.kv_transfer else None,
            cache_salts=self.cache_salts,
            moderation=_moderation(options, contracts, facts),
        )
        return LoadedModel(config, engine_facts, options, model)

    def _weights_uploader(self, contract: Contract | None) -> WeightsUploader | None:
        """A new one for each load: a backend that was loaded again has no adapter's weights."""
        needs_weights = contract is not None and contract.supports("adapter_weights")
        return WeightsUploader(self._uploads) if needs_weights else None

    def close(self) -> None:
        """Stop the tokenizer threads."""
        self._pool.close()

    @property
    def repositories(self) -> Sequence[Path]:
        """The model repositories."""
        return self._server.options.model_repositories

    def _read_facts(
        self,
        name: str,
        version: int,
        config: Mapping[str, Any],
        engine_facts: ModelFacts | None,
        options: ModelOptions,
    ) -> ModelFacts:
        """The engine's facts; for another backend's model, those in its files."""
        if engine_facts is not None:
            _check_context(options, engine_facts)
            _check_labels(options, engine_facts)
            self._check_role(engine_facts)
            return engine_facts
        source = self._version_source(name, version, config)
        return model_files.read_facts(source, self._source)

    def _check_role(self, engine_facts: ModelFacts) -> None:
        """Raises ModelUnavailable if the engine generates text, but not for this server's role."""
        if engine_facts.tasks is None or "generate" in engine_facts.tasks:
            problem = role_problem(self._role, engine_facts.kv_transfer)
            if problem is not None:
                raise ModelUnavailable(problem)

    def _version_source(self, name: str, version: int, config: Mapping[str, Any]) -> ModelSource:
        folder = model_files.model_folder(name, self.repositories)
        return ModelSource(config=config, folder=folder and folder / str(version))

    def _fingerprint(self, name: str, version: int, config: Mapping[str, Any]) -> str:
        """Raises ModelUnavailable if a file cannot be read."""
        try:
            return model_files.fingerprint(self._version_source(name, version, config))
        except OSError as error:
            raise ModelUnavailable(f"Cannot read {error.filename}: {error.strerror}") from error

    def _source(self, name: str) -> ModelSource | None:
        """The latest version of a composing model; None if it is missing."""
        try:
            config = self._server.model_config(name)
        except GatewayError:  # missing: the core would not load the ensemble
            return None
        return ModelSource(config=config, folder=None)


def _facts_from_options(options: ModelOptions) -> dict[str, Any]:
    """The fields of ModelFacts that the operator's options set."""
    values = {
        "tokenizer": options.tokenizer,
        "max_model_len": options.max_model_len,
        "description": options.description,
        "labels": options.labels,
    }
    return {fact: value for fact, value in values.items() if value is not None}


def _check_context(options: ModelOptions, engine_facts: ModelFacts) -> None:
    configured, limit = options.max_model_len, engine_facts.max_model_len
    if configured is not None and limit is not None and configured > limit:
        raise ModelUnavailable(
            f"its max_model_len of {configured} exceeds the engine's limit of {limit}"
        )


def _check_sleep(options: ModelOptions, facts: ModelFacts) -> None:
    for option in ("idle_sleep_s", "sleep_level"):
        if getattr(options, option) is not None and facts.sleep_obstacle is not None:
            raise ModelUnavailable(f"its option {option} has no effect: {facts.sleep_obstacle}")


def _check_labels(options: ModelOptions, engine_facts: ModelFacts) -> None:
    if options.labels and engine_facts.labels and len(options.labels) != len(engine_facts.labels):
        raise ModelUnavailable(
            f"its option `labels` has {len(options.labels)} labels for "
            f"{len(engine_facts.labels)} classes of the engine"
        )


def _moderation(
    options: ModelOptions, contracts: SelectedContracts, facts: ModelFacts
) -> ModerationPolicy | None:
    if options.moderation is None:
        return None
    return moderation_policy(options.moderation, facts.labels if contracts.classification else None)


def _tokenizer(
    name: str, facts: ModelFacts, *, certain: bool, use_fastokens: bool
) -> Tokenizer | None:
    """Load the model's tokenizer.

    One that only another backend's files name may not exist on this machine: then log a warning and
    return None.
    """
    folder = facts.tokenizer
    if folder is None:
        return None
    try:
        return tokenizer.load(Path(folder), use_fastokens=use_fastokens)
    except ModelUnavailable as error:
        if certain:
            raise
        logger.warning("model %s: serving without a tokenizer: %s", name, error.message)
        return None


def _select_contracts(
    config: Mapping[str, Any],
    facts: ModelFacts,
    options: ModelOptions,
    vocabulary: PromptBuilder | None,
    *,
    decoupled: bool,
) -> SelectedContracts:
    """Select the model's contracts. Raises Unservable if none fits and none is configured."""
    try:
        return select_contracts(
            config,
            tasks=facts.tasks,
            options=ContractOptions(
                name=options.contract,
                tensors=options.tensors,
                prompt_embedding_tables=model_files.load_prompt_tables(
                    options.prompt_embedding_tables
                ),
                images=facts.images,
                audio=facts.audio,
                logits_processors=facts.logits_processors,
                transcription=facts.transcription,
                labels=facts.labels,
            ),
            decoupled=decoupled,
            vocabulary=vocabulary,
        )
    except ModelUnavailable as error:
        if options.contract is not None:
            raise
        raise Unservable(error.message) from error


def _with_media(
    name: str, facts: ModelFacts, contracts: SelectedContracts, prompts: PromptBuilder | None
) -> ModelFacts:
    return replace(
        facts,
        images=_image_support(name, facts, contracts, prompts),
        audio=_audio_support(name, facts, contracts, prompts),
        transcription=contracts.transcription,
    )


def _image_support(
    name: str, facts: ModelFacts, contracts: SelectedContracts, prompts: PromptBuilder | None
) -> ImageSupport | None:
    """The model's image support, by its engine or files, its tensors and its template."""
    support = image_support(contracts, facts.images)
    if support is None or support.takes_question:
        return support
    written = None
    if prompts is not None:
        as_text = takes_text(contracts)
        written = prompts.take_media("image", support.placeholder, as_text=as_text)
    if written is None:
        logger.warning("model %s: takes no images: its chat template writes none", name)
        return None
    return replace(support, placeholder=written.text)


def _audio_support(
    name: str, facts: ModelFacts, contracts: SelectedContracts, prompts: PromptBuilder | None
) -> AudioSupport | None:
    """Audio support of the model's prompts, by its engine, its tensors and its template."""
    support = audio_support(contracts, facts.audio)
    if support is None or prompts is None:
        return None
    written = prompts.take_media("audio", support.placeholder, as_text=takes_text(contracts))
    if written is None:
        logger.warning("model %s: takes no audio: its chat template writes none", name)
        return None
    return replace(support, placeholder=written.text)


def _prompts(
    loaded: Tokenizer | None, facts: ModelFacts, options: ModelOptions
) -> tuple[PromptBuilder | None, ModelFiles | None]:
    """The prompt builder and the files that show the output format; None without a tokenizer."""
    if loaded is None or facts.tokenizer is None:
        return None, None
    template = _chat_template(options)
    prompts = PromptBuilder(
        loaded,
        chat_template=template,
        max_model_len=facts.max_model_len,
        allow_special_tokens=options.allow_special_tokens,
    )
    in_use = template or template_for_tools(loaded.chat_templates)
    return prompts, ModelFiles(folder=Path(facts.tokenizer), chat_template=in_use)


def _chat_template(options: ModelOptions) -> str | None:
    """The chat template in the options; None for the tokenizer's own."""
    if options.chat_template is None:
        return None
    try:
        return chat_template.read(options.chat_template)
    except ModelUnavailable as error:
        message = f"its chat template {options.chat_template}: {error.message}"
        raise ModelUnavailable(message) from error


def _output_format(name: str, files: ModelFiles | None, options: ModelOptions) -> OutputFormat:
    if files is None or files.chat_template is None:
        return PLAIN  # no chat, and completions are not parsed
    named = {each: parser for each in SETTINGS if (parser := getattr(options, each)) is not None}
    output_format = select_parser(files, named)
    evidence = " ".join(output_format.evidence)
    logger.info("model %s: output is parsed as %s. %s", name, output_format.name, evidence)
    if lacking := warning(output_format, files):
        logger.warning("model %s: %s", name, lacking)
    return output_format
