"""Settings of earlier versions, and what replaces each."""

from collections.abc import Mapping

from openai_frontend.config.triton_options import TRITON_OPTIONS

_OTHER_NAMES = {"model_load_device_limit": "model_load_gpu_limit"}


def _setting(setter: str) -> str:
    return f"triton_{setter}" if setter.startswith("log_") else _OTHER_NAMES.get(setter, setter)


# Removed setting -> option of `triton_option`
TRITON_OPTION_OF: Mapping[str, str] = {
    _setting(option.setter): name for name, option in TRITON_OPTIONS.items()
}


_CONSTANTS = {
    "max_audio_samples": 150_000_000,
    "max_body_chunks": 65_536,
    "max_input_tokens": 300_000,
    "max_messages": 2048,
    "max_pixels": 100_000_000,
    "max_prompts": 2048,
    "model_load_backoff_s": 10,
    "remote_prefill_timeout_s": 30,
    "tokenizer_queue": 256,
}


_RENAMED = {"public_docs": "set web_pages to public instead"}


def replacement(name: str) -> str | None:
    """The replacement of a removed setting; None if the name never was a setting."""
    if name in _CONSTANTS:
        return f"its value is always {_CONSTANTS[name]}"
    if name in _RENAMED:
        return _RENAMED[name]
    option = TRITON_OPTION_OF.get(name)
    return None if option is None else f"set triton_option to {option}=VALUE instead"
