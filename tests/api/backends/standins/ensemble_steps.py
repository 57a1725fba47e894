"""The steps of TensorRT-LLM's ensemble: how it connects the tensors of its parts, as NVIDIA's
template declares it (`triton_backend/all_models/inflight_batcher_llm` of NVIDIA/TensorRT-LLM).
"""

from collections.abc import Mapping

# The part's name of a tensor and the ensemble's, one word where they are the same. `_NAME` is a
# tensor between the parts.
PREPROCESSING_MAPS: Mapping[str, str] = {
    "input_map": """
QUERY text_input
DECODER_QUERY decoder_text_input
REQUEST_OUTPUT_LEN max_tokens
BAD_WORDS_DICT bad_words
STOP_WORDS_DICT stop_words
EMBEDDING_BIAS_WORDS embedding_bias_words
EMBEDDING_BIAS_WEIGHTS embedding_bias_weights
END_ID end_id
PAD_ID pad_id
PROMPT_TABLE_EXTRA_ID prompt_table_extra_id
""",
    "output_map": """
REQUEST_INPUT_LEN _REQUEST_INPUT_LEN
INPUT_ID _INPUT_ID
REQUEST_DECODER_INPUT_LEN _REQUEST_DECODER_INPUT_LEN
DECODER_INPUT_ID _DECODER_INPUT_ID
REQUEST_OUTPUT_LEN _REQUEST_OUTPUT_LEN
STOP_WORDS_IDS _STOP_WORDS_IDS
BAD_WORDS_IDS _BAD_WORDS_IDS
EMBEDDING_BIAS _EMBEDDING_BIAS
OUT_END_ID _PREPROCESSOR_END_ID
OUT_PAD_ID _PREPROCESSOR_PAD_ID
OUT_PROMPT_TABLE_EXTRA_IDS _OUT_PROMPT_TABLE_EXTRA_IDS
""",
}

ENGINE_MAPS: Mapping[str, str] = {
    "input_map": """
input_ids _INPUT_ID
decoder_input_ids _DECODER_INPUT_ID
input_lengths _REQUEST_INPUT_LEN
decoder_input_lengths _REQUEST_DECODER_INPUT_LEN
exclude_input_in_output
request_output_len _REQUEST_OUTPUT_LEN
end_id _PREPROCESSOR_END_ID
pad_id _PREPROCESSOR_PAD_ID
embedding_bias _EMBEDDING_BIAS
runtime_top_k top_k
runtime_top_p top_p
temperature
len_penalty length_penalty
repetition_penalty
min_tokens
presence_penalty
frequency_penalty
seed
return_log_probs
return_context_logits
return_generation_logits
return_perf_metrics
return_num_input_tokens
return_num_output_tokens
num_return_sequences
beam_width
streaming stream
prompt_embedding_table
prompt_vocab_size
stop_words_list _STOP_WORDS_IDS
bad_words_list _BAD_WORDS_IDS
prompt_table_extra_ids _OUT_PROMPT_TABLE_EXTRA_IDS
lora_task_id
lora_weights
lora_config
guided_decoding_guide_type
guided_decoding_guide
""",
    "output_map": """
output_ids _TOKENS_BATCH
sequence_length _SEQUENCE_LENGTH
cum_log_probs
output_log_probs
context_logits
generation_logits
batch_index
sequence_index
kv_cache_alloc_new_blocks
kv_cache_reused_blocks
kv_cache_alloc_total_blocks
arrival_time_ns
first_scheduled_time_ns
first_token_time_ns
last_token_time_ns
acceptance_rate
total_accepted_draft_tokens
total_draft_tokens
num_input_tokens
num_output_tokens
""",
}

POSTPROCESSING_MAPS: Mapping[str, str] = {
    "input_map": """
TOKENS_BATCH _TOKENS_BATCH
SEQUENCE_LENGTH _SEQUENCE_LENGTH
""",
    "output_map": """
OUTPUT text_output
""",
}
