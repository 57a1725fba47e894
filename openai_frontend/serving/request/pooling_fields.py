"""Fields of the embeddings, score and rerank requests that cannot be honoured: a table each."""

from openai_frontend.serving.request.field_policy import Neutral

# vLLM's, of all its pooling models
_NEUTRAL_IN_POOLING: Neutral = {
    "cache_salt": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "padding": ("do_not_pad",),
    "priority": (0,),
    "use_activation": (True,),
}

NEUTRAL_IN_EMBEDDINGS: Neutral = {
    **_NEUTRAL_IN_POOLING,
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "messages": (),
    "normalize": (True,),
}

NEUTRAL_IN_SCORING: Neutral = {
    **_NEUTRAL_IN_POOLING,
    "add_special_tokens": (True,),
    "instruction": ("",),
    "max_tokens_per_doc": (0,),
    "max_tokens_per_query": (0,),
    "truncate_prompt_tokens": (),
    "truncation_side": ("right",),
    # text-embeddings-inference's
    "raw_scores": (False,),
    "truncate": (False,),
}
