"""A Qwen2-Audio model of random weights, which hears: other audio gives another answer."""

import json
import sys
from pathlib import Path
from typing import Any

from tests.fast.prompting import tiny_tokenizer

BOS, AUDIO, EOS = "<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"
RATE, MAX_SECONDS = 16_000, 30
MAX_TOKENS = 750  # for 30 s
MAX_FILES = 3  # per request
# As the model's own: numbered placeholders
_TEMPLATE = (
    "{% set n = namespace(n=0) %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'audio' %}{% set n.n = n.n + 1 %}"
    f"Audio {{{{ n.n }}}}: {BOS}{AUDIO}{EOS}\n"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CONFIG = """backend: "inprocess"
parameters { key: "engine" value: { string_value: "vllm" } }
parameters { key: "audio_processes" value: { string_value: "1" } }
instance_group [{ count: 1, kind: KIND_MODEL }]
"""


def write(folder: Path) -> Path:
    """Write the model into a folder of a model repository."""
    weights = folder / "1" / "weights"
    _write_weights(weights)
    arguments = {
        "model": "./weights",
        "max_model_len": 2048,
        "limit_mm_per_prompt": {"audio": MAX_FILES},
    }
    (folder / "1" / "model.json").write_text(json.dumps(arguments))
    (folder / "config.pbtxt").write_text(_CONFIG)
    return folder


def _write_weights(folder: Path) -> None:
    import torch
    from transformers import (
        PreTrainedTokenizerFast,
        Qwen2AudioConfig,
        Qwen2AudioForConditionalGeneration,
        Qwen2AudioProcessor,
        Qwen2Config,
        WhisperFeatureExtractor,
    )

    tiny_tokenizer.write(folder, chat_template=_TEMPLATE, special_tokens=(BOS, AUDIO, EOS))
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    torch.manual_seed(7)
    hears = {
        "num_mel_bins": 16, "encoder_layers": 1, "encoder_attention_heads": 2,
        "encoder_ffn_dim": 64, "d_model": 64, "init_std": 0.3,
    }  # fmt: skip
    # vLLM's attention on CPUs takes heads of 32
    text = Qwen2Config(
        vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=2048,
        initializer_range=0.3, bos_token_id=None, eos_token_id=end,
    )  # fmt: skip
    config: Any = Qwen2AudioConfig(
        audio_config=hears,
        text_config=text,
        audio_token_index=tokenizer.convert_tokens_to_ids(AUDIO),
        eos_token_id=end,
        dtype=torch.float32,
    )
    Qwen2AudioForConditionalGeneration(config).save_pretrained(folder)
    _rename(folder / "model.safetensors")
    features = WhisperFeatureExtractor(feature_size=16, chunk_length=MAX_SECONDS)
    processor = Qwen2AudioProcessor(features, tokenizer, chat_template=_TEMPLATE)
    processor.save_pretrained(folder)


def _rename(file: Path) -> None:
    """As vLLM reads them: transformers 5.19 writes `model.` twice."""
    from safetensors.torch import load_file, save_file

    renamed = {
        name.replace("model.model.", "model."): each for name, each in load_file(file).items()
    }
    save_file(renamed, file, {"format": "pt"})


if __name__ == "__main__":
    write(Path(sys.argv[1]))
