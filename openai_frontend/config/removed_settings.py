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


def replacement(name: str) -> str | None:
    """What to use instead of a removed setting; None if it never was one."""
    option = TRITON_OPTION_OF.get(name)
    return None if option is None else f"set triton_option to {option}=VALUE instead"
