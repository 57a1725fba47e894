"""The parts of vLLM that the gateway uses, by capability: names, parameters and fields. Data only.

`versions.py` compares them with a vLLM; docs/versions.md is generated from both.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from openai_frontend.engines.vllm.package_source import PackageSource


@dataclass(frozen=True, slots=True)
class Capability:
    """A part of vLLM. Those with the same `unit` are used together or not at all."""

    name: str
    gives: str
    without: str
    requirements: str  # one per line, see `PackageSource.problem`
    unit: str = ""
    public: bool = False  # not internal to vLLM: used with every version

    def problems(self, source: PackageSource) -> Iterator[str]:
        """Requirements that the sources do not meet."""
        for line in self.requirements.strip().splitlines():
            if (problem := source.problem(line.strip())) is not None:
                yield problem


ENGINE = Capability(
    name="engine",
    gives="text, embeddings, scores and LoRA through vLLM's public client, `AsyncLLM`",
    without="the model is not loaded",
    public=True,
    requirements="""
        vllm.platforms:current_platform
        vllm.usage.usage_lib:UsageContext.OPENAI_API_SERVER
        vllm.engine.arg_utils:AsyncEngineArgs(model, tokenizer, hf_config_path, disable_log_stats)
        vllm.engine.arg_utils:AsyncEngineArgs(use_tqdm_on_load, max_logprobs, scheduling_policy)
        vllm.engine.arg_utils:AsyncEngineArgs(dtype, enforce_eager, kv_cache_memory_bytes)
        vllm.engine.arg_utils:AsyncEngineArgs(block_size, enable_chunked_prefill, reasoning_parser)
        vllm.engine.arg_utils:AsyncEngineArgs(structured_outputs_config, enable_lora)
        vllm.v1.engine.async_llm:AsyncLLM.from_engine_args(engine_args, usage_context)
        vllm.v1.engine.async_llm:AsyncLLM.generate(prompt, sampling_params, request_id)
        vllm.v1.engine.async_llm:AsyncLLM.generate(lora_request, priority)
        vllm.v1.engine.async_llm:AsyncLLM.encode(prompt, pooling_params, request_id)
        vllm.v1.engine.async_llm:AsyncLLM.add_lora(lora_request)
        vllm.v1.engine.async_llm:AsyncLLM.remove_lora(lora_id)
        vllm.v1.engine.async_llm:AsyncLLM.sleep(level)
        vllm.v1.engine.async_llm:AsyncLLM.wake_up(tags)
        vllm.v1.engine.async_llm:AsyncLLM.collective_rpc(method)
        vllm.third_party.pynvml
        vllm.v1.engine.async_llm:AsyncLLM.shutdown
        vllm.v1.engine.async_llm:AsyncLLM.errored
        vllm.v1.engine.async_llm:AsyncLLM.log_stats
        vllm.v1.engine.async_llm:AsyncLLM.model_config
        vllm.v1.engine.async_llm:AsyncLLM.vllm_config
        vllm.v1.engine.async_llm:AsyncLLM.input_processor
        vllm.v1.engine.async_llm:AsyncLLM.output_processor
        vllm.v1.engine.output_processor:OutputProcessor.get_num_unfinished_requests
        vllm.config:ModelConfig.get_diff_sampling_param
        vllm.config:ModelConfig.try_get_generation_config
        vllm.config:ModelConfig(generation_config, override_generation_config)
        vllm.config:ModelConfig.get_vocab_size
        vllm.config:ModelConfig.runner_type
        vllm.config:ModelConfig.max_model_len
        vllm.config:ModelConfig.score_type
        vllm.config:ModelConfig.embedding_size
        vllm.config:ModelConfig.is_matryoshka
        vllm.config:ModelConfig.hf_config
        vllm.config:VllmConfig(lora_config, reasoning_config, scheduler_config)
        vllm.config:VllmConfig(structured_outputs_config, cache_config, parallel_config)
        vllm.config:LoRAConfig(max_lora_rank, max_loras)
        vllm.config:SchedulerConfig(policy, async_scheduling)
        vllm.pooling_params:PoolingParams(task, dimensions, use_activation, extra_kwargs)
        vllm.sampling_params:RequestOutputKind.DELTA
        vllm.sampling_params:RequestOutputKind.FINAL_ONLY
        vllm.sampling_params:SamplingParams(n, presence_penalty, frequency_penalty)
        vllm.sampling_params:SamplingParams(repetition_penalty, temperature, top_p, top_k, min_p)
        vllm.sampling_params:SamplingParams(seed, stop, stop_token_ids, ignore_eos, max_tokens)
        vllm.sampling_params:SamplingParams(min_tokens, logprobs, prompt_logprobs, output_kind)
        vllm.sampling_params:SamplingParams(skip_special_tokens, spaces_between_special_tokens)
        vllm.sampling_params:SamplingParams(include_stop_str_in_output, structured_outputs)
        vllm.sampling_params:SamplingParams(logit_bias, allowed_token_ids, bad_words, extra_args)
        vllm.sampling_params:SamplingParams(thinking_token_budget, repetition_detection)
        vllm.sampling_params:SamplingParams.update_from_tokenizer
        vllm.sampling_params:StructuredOutputsParams(json, regex, choice, grammar, json_object)
        vllm.sampling_params:StructuredOutputsParams(structural_tag)
        vllm.sampling_params:RepetitionDetectionParams
        vllm.v1.structured_output.utils:choice_as_grammar
        vllm.utils.mistral:is_mistral_tokenizer
        vllm.exceptions:VLLMClientError | vllm.exceptions:VLLMValidationError
        vllm.v1.engine.exceptions:EngineDeadError
        vllm.v1.engine.exceptions:EngineGenerateError
        vllm.inputs:TextPrompt
        vllm.inputs.engine:tokens_input(prompt_token_ids, cache_salt)
        vllm.lora.request:LoRARequest(lora_name, lora_int_id, lora_path)
    """,
)
PARSERS = Capability(
    name="parsers",
    gives="vLLM's own tool and reasoning parsers (`vllm:NAME`)",
    without="models with such a parser are not loaded",
    public=True,
    requirements="""
        vllm.reasoning:ReasoningParserManager
        vllm.tool_parsers:ToolParserManager
        vllm.tokenizers:get_tokenizer
        vllm.parser.parser_manager:ParserManager.get_parser(tool_parser_name, is_harmony)
        vllm.parser.parser_manager:ParserManager.get_parser(reasoning_parser_name, model_name)
        vllm.parser.parser_manager:ParserManager.get_parser(enable_auto_tools)
        vllm.parser.abstract_parser:Parser.adjust_request
        vllm.parser.abstract_parser:Parser.parse_delta(delta_text, delta_token_ids, request)
        vllm.parser.abstract_parser:Parser.parse_delta(prompt_token_ids, finished)
        vllm.entrypoints.openai.chat_completion.protocol:ChatCompletionRequest
    """,
)
STEP_LOOP = Capability(
    name="step_loop",
    gives="engine steps read without a task and a queue per token",
    without="`AsyncLLM.generate`: two to five times the CPU per token",
    requirements="""
        vllm.v1.engine.async_llm:AsyncLLM.engine_core
        vllm.v1.engine.async_llm:AsyncLLM.get_supported_tasks
        vllm.v1.engine.input_processor:InputProcessor.process_inputs(request_id, prompt, params)
        vllm.v1.engine.input_processor:InputProcessor.process_inputs(supported_tasks, lora_request)
        vllm.v1.engine.input_processor:InputProcessor.process_inputs(priority)
        vllm.v1.engine.input_processor:InputProcessor.process_inputs_async \
| vllm.renderers:BaseRenderer._executor
        vllm.v1.engine:EngineCoreRequest(external_req_id, client_index, request_id)
        vllm.v1.engine:EngineCoreRequest(prompt_token_ids, sampling_params)
        vllm.v1.engine:EngineCoreOutput(request_id, new_token_ids, finish_reason, stop_reason)
        vllm.v1.engine:EngineCoreOutput(prefill_stats)
        vllm.v1.engine:EngineCoreOutputs(outputs, scheduler_stats, timestamp, utility_output)
        vllm.v1.engine:EngineCoreRequestType.ADD
        vllm.v1.engine:FinishReason.STOP
        vllm.v1.metrics.stats:PrefillStats(num_cached_tokens)
        vllm.v1.engine.output_processor:OutputProcessor.add_request(request, prompt, parent_req)
        vllm.v1.engine.output_processor:OutputProcessor.add_request(request_index, queue)
        vllm.v1.engine.output_processor:OutputProcessor.process_outputs(engine_core_outputs)
        vllm.v1.engine.output_processor:OutputProcessor.abort_requests(request_ids, internal)
        vllm.v1.engine.output_processor:OutputProcessor.request_states
        vllm.v1.engine.output_processor:OutputProcessor.tokenizer
        vllm.v1.engine.output_processor:RequestState.queue
        vllm.v1.engine.output_processor:RequestState.detokenizer
        vllm.v1.engine.output_processor:OutputProcessorOutput(reqs_to_abort)
        vllm.v1.engine.detokenizer:FastIncrementalDetokenizer.stream
        vllm.v1.engine.detokenizer:FastIncrementalDetokenizer.tokenizer
        vllm.v1.engine.detokenizer:FastIncrementalDetokenizer.skip_special_tokens
        vllm.v1.engine.detokenizer:FastIncrementalDetokenizer.num_output_tokens
        vllm.v1.engine.detokenizer:FastIncrementalDetokenizer.get_next_output_text
        vllm.v1.engine.detokenizer:FastIncrementalDetokenizer.update
        vllm.v1.engine.detokenizer:IncrementalDetokenizer.from_new_request(tokenizer, request)
        vllm.v1.engine.core_client:AsyncMPClient.add_request_async
        vllm.v1.engine.core_client:AsyncMPClient.abort_requests_async
        vllm.v1.engine.core_client:AsyncMPClient.get_output_async
    """,
)
DIRECT_SOCKETS = Capability(
    name="direct_sockets",
    gives="engine steps read from their socket in its callback",
    without="vLLM's client reads them: 60 us of CPU more per step",
    requirements="""
        vllm.v1.engine.core_client:AsyncMPClient.input_socket
        vllm.v1.engine.core_client:AsyncMPClient.encoder
        vllm.v1.serial_utils:MsgpackDecoder(t)
        vllm.v1.serial_utils:MsgpackDecoder.decode(bufs)
        vllm.v1.serial_utils:MsgpackDecoder.dec_hook
        vllm.v1.serial_utils:MsgpackDecoder.aux_buffers
        vllm.v1.engine:EngineCoreOutput(new_logprobs)
        vllm.v1.outputs:LogprobsLists(logprob_token_ids, logprobs)
        vllm.v1.engine.core_client:AsyncMPClient.core_engine
        vllm.v1.engine.core_client:AsyncMPClient.client_index
        vllm.v1.engine.core_client:AsyncMPClient.ensure_alive
        vllm.v1.engine.core_client:AsyncMPClient.utility_results
        vllm.v1.engine.core_client:AsyncMPClient.resources
        vllm.v1.engine.core_client:BackgroundResources(output_socket, output_queue_task)
        vllm.v1.engine.core_client:BackgroundResources.validate_alive
        vllm.v1.engine.core_client:_process_utility_output(output, utility_results)
        vllm.config:ParallelConfig(enable_elastic_ep)
    """,
)
SCHEDULER = Capability(
    name="scheduler",
    gives="grammar bitmasks in batches, and a quota for requests with a grammar",
    without="requests with a grammar slow down the others",
    unit="scheduler",
    requirements="""
        vllm.engine.arg_utils:AsyncEngineArgs(scheduler_cls)
        vllm.v1.core.sched.async_scheduler:AsyncScheduler
        vllm.v1.core.sched.scheduler:Scheduler.get_grammar_bitmask(scheduler_output)
        vllm.v1.core.sched.scheduler:Scheduler.schedule
        vllm.v1.core.sched.scheduler:Scheduler._handle_blocked_waiting_request(request) \
| vllm.v1.core.sched.scheduler:Scheduler._try_promote_blocked_waiting_request(request)
        vllm.v1.core.sched.scheduler:Scheduler.requests
        vllm.v1.core.sched.scheduler:Scheduler.running
        vllm.v1.core.sched.scheduler:Scheduler.waiting
        vllm.v1.core.sched.scheduler:Scheduler.max_num_running_reqs
        vllm.v1.core.sched.scheduler:Scheduler.structured_output_manager
        vllm.v1.core.sched.output:GrammarOutput(structured_output_request_ids, grammar_bitmask)
        vllm.v1.core.sched.output:SchedulerOutput(has_structured_output_requests)
        vllm.v1.core.sched.output:SchedulerOutput(scheduled_spec_decode_tokens)
        vllm.v1.core.sched.output:SchedulerOutput(num_scheduled_tokens)
        vllm.v1.structured_output:StructuredOutputManager._grammar_bitmask
        vllm.v1.structured_output:StructuredOutputManager.enable_in_reasoning
        vllm.v1.structured_output.request:StructuredOutputRequest.grammar
        vllm.v1.request:Request.use_structured_output
        vllm.v1.request:Request.structured_output_request
        vllm.v1.request:Request.is_prefill_chunk
        vllm.v1.request:RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    """,
)
GRAMMAR_ENGINES = Capability(
    name="grammar_engines",
    gives="xgrammar, and llguidance for what xgrammar cannot enforce, in one model",
    without="xgrammar alone; a constraint that it cannot enforce is refused",
    unit="scheduler",
    requirements="""
        vllm.v1.structured_output:StructuredOutputManager.backend
        vllm.v1.structured_output:StructuredOutputManager.tokenizer
        vllm.v1.structured_output.backend_types:StructuredOutputBackend(vllm_config, tokenizer)
        vllm.v1.structured_output.backend_types:StructuredOutputBackend(vocab_size)
        vllm.v1.structured_output.backend_types:StructuredOutputBackend.compile_grammar
        vllm.v1.structured_output.backend_types:StructuredOutputOptions.REGEX
        vllm.v1.structured_output.backend_xgrammar:XgrammarBackend.__post_init__
        vllm.v1.structured_output.backend_xgrammar:XgrammarBackend.compiler
        vllm.v1.structured_output.backend_xgrammar:XgrammarGrammar(matcher)
        vllm.v1.structured_output.backend_xgrammar:validate_xgrammar_grammar
        vllm.v1.structured_output.backend_guidance:GuidanceBackend
        vllm.v1.structured_output.backend_guidance:GuidanceGrammar(ll_matcher)
        vllm.envs:VLLM_XGRAMMAR_CACHE_MB
    """,
)
STATISTICS = Capability(
    name="statistics",
    gives="metrics of the engine: KV cache, waiting requests, preemptions, steps, adapters",
    without="`/metrics` has only what the gateway counts",
    unit="scheduler",
    requirements="""
        vllm.v1.core.sched.scheduler:Scheduler.update_from_output(scheduler_output)
        vllm.v1.core.sched.scheduler:Scheduler._preempt_request
        vllm.v1.core.sched.scheduler:Scheduler.make_stats
        vllm.v1.core.sched.scheduler:Scheduler.get_request_counts
        vllm.v1.core.sched.scheduler:Scheduler.deferred_waiting \
| vllm.v1.core.sched.scheduler:Scheduler.skipped_waiting
        vllm.v1.core.sched.scheduler:Scheduler.kv_cache_manager
        vllm.v1.core.sched.scheduler:Scheduler.lora_config
        vllm.v1.core.kv_cache_manager:KVCacheManager.usage
        vllm.v1.core.sched.output:SchedulerOutput(total_num_scheduled_tokens)
        vllm.v1.core.sched.output:SchedulerOutput(scheduled_cached_reqs)
        vllm.v1.core.sched.output:CachedRequestData(num_output_tokens)
        vllm.v1.metrics.stats:SchedulerStats(num_running_reqs, num_waiting_reqs)
        vllm.v1.metrics.stats:SchedulerStats(num_skipped_waiting_reqs, kv_cache_usage)
        vllm.v1.metrics.stats:SchedulerStats(kv_connector_stats)
    """,
)
WHOLE_OUTPUTS = Capability(
    name="whole_outputs",
    gives="the tokens of an answer that is not streamed come in few messages",
    without="a message per token",
    unit="scheduler",
    requirements="""
        vllm.v1.core.sched.scheduler:Scheduler.update_from_output(scheduler_output)
        vllm.v1.core.sched.scheduler:Scheduler.finish_requests(request_ids)
        vllm.v1.core.sched.scheduler:Scheduler.requests
        vllm.v1.request:Request.sampling_params
        vllm.v1.engine:EngineCoreOutput(request_id, new_token_ids, finish_reason, stop_reason)
        vllm.v1.engine:EngineCoreOutput(trace_headers, num_nans_in_logits)
        vllm.v1.engine:EngineCoreOutputs(outputs, scheduler_stats, finished_requests)
    """,
)
FORK_SERVER = Capability(
    name="fork_server",
    gives="on CPUs, engines and their helpers start from a process that has imported vLLM",
    without="each of these processes imports vLLM, which takes 7 s of CPU time",
    requirements="""
        vllm.v1.engine.utils:get_mp_context
        vllm.v1.engine.utils:CoreEngineProcManager
        vllm.v1.engine.core:EngineCoreProc.run_engine_core
        vllm.v1.executor.uniproc_executor
    """,
)
CPU_WORKER = Capability(
    name="cpu_worker",
    gives="on CPUs, `seed` with chunked prefill, LoRA in mixed batches and `prompt_logprobs`",
    without="on CPUs, chunked prefill is off, and LoRA is refused before vLLM 0.33",
    requirements="""
        vllm.engine.arg_utils:AsyncEngineArgs(worker_cls)
        vllm.v1.worker.cpu_worker:CPUWorker.init_device
        vllm.v1.worker.cpu_worker:CPUModelRunner
        vllm.v1.worker.cpu_model_runner:CPUModelRunner._sample
        vllm.v1.worker.cpu_model_runner:CPUModelRunner._bookkeeping_sync
        vllm.v1.worker.cpu_model_runner:CPUModelRunner.input_batch
        vllm.v1.worker.cpu_model_runner:CPUModelRunner.discard_request_mask
        vllm.v1.worker.cpu_model_runner:CPUModelRunner._get_prompt_logprobs_dict
        vllm.v1.worker.cpu_model_runner:CPUModelRunner.num_prompt_logprobs
        vllm.v1.worker.cpu_model_runner:CPUModelRunner.set_active_loras
        vllm.lora.model_manager:get_punica_wrapper
        vllm.lora.punica_wrapper.punica_cpu:PunicaWrapperCPU.add_lora_linear
        vllm.lora.punica_wrapper.punica_cpu:PunicaWrapperCPU.add_lora_embedding
        vllm.lora.punica_wrapper.punica_cpu:PunicaWrapperCPU.add_lora_logits
        vllm.lora.punica_wrapper.punica_cpu:PunicaWrapperCPU.token_lora_indices
        vllm.lora.punica_wrapper.punica_cpu:PunicaWrapperCPU.sampler_indices
        vllm.lora.punica_wrapper.punica_cpu:PunicaWrapperCPU.indices_len
    """,
)
IMAGES = Capability(
    name="images",
    gives="images in prompts, preprocessed in processes of their own",
    without="models that take images get text only",
    requirements="""
        vllm.multimodal:MULTIMODAL_REGISTRY
        vllm.multimodal.registry:MultiModalRegistry.create_processor(model_config)
        vllm.multimodal.registry:MultiModalRegistry.get_processing_info(model_config)
        vllm.multimodal.processing.context:BaseProcessingInfo.allowed_mm_limits
        vllm.multimodal.processing.context:BaseProcessingInfo.parse_mm_data(mm_data)
        vllm.multimodal.processing:ProcessorInputs(prompt, mm_data_items, mm_uuid_items)
        vllm.multimodal.processing:TimingContext(enabled)
        vllm.multimodal.processing.processor:BaseMultiModalProcessor.apply(inputs, timing_ctx)
        vllm.multimodal.processing.processor:BaseMultiModalProcessor.dummy_inputs
        vllm.multimodal.processing.dummy_inputs:BaseDummyInputsBuilder.get_dummy_text(mm_counts)
        vllm.multimodal.processing.dummy_inputs:BaseDummyInputsBuilder.get_dummy_mm_data(seq_len)
        vllm.multimodal.inputs:PlaceholderRange(offset, length, is_embed)
        vllm.multimodal.inputs:MultiModalKwargsItem
        vllm.multimodal.inputs:MultiModalFeatureSpec(data, mm_hash, mm_position)
        vllm.inputs.engine:mm_input(prompt_token_ids, mm_kwargs, mm_hashes, mm_placeholders)
        vllm.inputs.engine:mm_input(cache_salt)
        vllm.model_executor.model_loader:get_model_cls
        vllm.v1.serial_utils:MsgpackEncoder.encode
        vllm.v1.serial_utils:MsgpackDecoder.decode
        vllm.v1.engine:EngineCoreRequest(mm_features)
        vllm.v1.engine.input_processor:InputProcessor.supports_mm_inputs
        vllm.v1.engine.input_processor:InputProcessor.mm_encoder_cache_size
        vllm.v1.engine.input_processor:InputProcessor.renderer
    """,
)
MEDIA_CACHE = Capability(
    name="media_cache",
    gives="images and audio that the engine still has are not sent to it again",
    without="each request sends all its images and audio to the engine",
    requirements="""
        vllm.multimodal.cache.lru:LruKeyReplicatedSenderCache.get_and_update_item(mm_item, mm_hash)\
 | vllm.multimodal.cache:MultiModalProcessorSenderCache.get_and_update_item(mm_item, mm_hash)
        vllm.multimodal.cache.lru:LruKeyReplicatedSenderCache.invalidate(mm_hash) \
| vllm.multimodal.cache:MultiModalProcessorSenderCache.invalidate(mm_hash)
        vllm.v1.engine:EngineCoreOutput(mm_cache_miss_hashes)
        vllm.renderers:BaseRenderer.mm_processor_cache
    """,
)
AUDIO = Capability(
    name="audio",
    gives="transcription models such as Whisper, and audio in chats; preprocessed in processes",
    without="transcription models are not loaded, and models with audio get text only",
    requirements=IMAGES.requirements.rstrip()
    + """
        vllm.multimodal.processing.processor:EncDecMultiModalProcessor.apply(inputs, timing_ctx)
        vllm.multimodal.processing.context:BaseProcessingInfo.data_parser
        vllm.multimodal.parse:MultiModalDataParser.audio_resampler
        vllm.multimodal.audio:AudioResampler.target_sr
        vllm.inputs.engine:EncoderDecoderInput
        vllm.inputs.engine:tokens_input(prompt_token_ids)
        vllm.config:ModelConfig.is_encoder_decoder
        vllm.config:ModelConfig.try_get_generation_config
        vllm.model_executor.models.interfaces:SupportsTranscription.supported_languages
        vllm.model_executor.models.whisper:WhisperProcessingInfo.get_feature_extractor
    """,
)
LOGGING = Capability(
    name="logging",
    gives="the gateway's log format for the engine's process",
    without="the engine's process logs in vLLM's format",
    requirements="""
        vllm.config.logging:LoggingConfig(pylogging_config_file)
    """,
)
CAPABILITIES = (
    ENGINE, PARSERS, STEP_LOOP, DIRECT_SOCKETS, SCHEDULER, GRAMMAR_ENGINES, STATISTICS,
    WHOLE_OUTPUTS, FORK_SERVER, CPU_WORKER, IMAGES, AUDIO, MEDIA_CACHE, LOGGING,
)  # fmt: skip
