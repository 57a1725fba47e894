"""Makes the untrained model around the text demo's weights, and its processor."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3Processor,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.models.idefics3.configuration_idefics3 import Idefics3VisionConfig
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from scripts.demo_model.tokenizer import chat_template

TEXT_DEMO = Path(__file__).parents[2] / "model_repository" / "demo" / "1" / "weights"
IMAGE_SIDE = 64  # pixels; every picture is resized to this square
PATCH = 8
# The connector joins 2 x 2 patches.
IMAGE_TOKENS = (IMAGE_SIDE // PATCH // 2) ** 2
IMAGE_TOKEN = "<image>"  # noqa: S105  a special token
_AROUND, _GLOBAL = "<fake_token_around_image>", "<global-img>"
SPECIAL_TOKENS = (_AROUND, IMAGE_TOKEN, "<end_of_utterance>", _GLOBAL)
# What the processor writes for a picture's placeholder
EXPANDED = _AROUND + _GLOBAL + IMAGE_TOKEN * IMAGE_TOKENS + _AROUND
_VOCABULARY_SIZE = 2056  # the text demo's 2,048, four special tokens and four unused rows

_TEXT_PART = "{%- for part in content if part.text is defined -%}{{- part.text -}}{%- endfor -%}"
_ANY_PART = (
    "{%- for part in content -%}"
    "{%- if part.type == 'image' -%}<image>{%- elif part.text is defined -%}{{- part.text -}}"
    "{%- endif -%}{%- endfor -%}"
)


def new_tokenizer() -> PreTrainedTokenizerFast:
    """The text demo's tokenizer with Idefics3's special tokens, and its template with images."""
    template = chat_template()
    if template.count(_TEXT_PART) != 1:
        raise RuntimeError("the text demo's template writes parts in another way than expected")
    tokenizer = AutoTokenizer.from_pretrained(TEXT_DEMO)
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL_TOKENS)})
    tokenizer.chat_template = template.replace(_TEXT_PART, _ANY_PART)
    return tokenizer


def new_processor(tokenizer: PreTrainedTokenizerFast) -> Idefics3Processor:
    """Resizes each picture to one square; PIL does it, so torchvision is not needed."""
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": IMAGE_SIDE},
        max_image_size={"longest_edge": IMAGE_SIDE},
        do_image_splitting=False,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    return Idefics3Processor(
        images,
        tokenizer,
        image_seq_len=IMAGE_TOKENS,
        chat_template=tokenizer.chat_template,
    )


def new_model(tokenizer: Any) -> Idefics3ForConditionalGeneration:
    """1.3 million parameters: the text demo's weights, and an untrained vision tower."""
    text = LlamaForCausalLM.from_pretrained(TEXT_DEMO)
    given = {name: value for name, value in text.config.to_dict().items() if name[0] != "_"}
    text_config = LlamaConfig(**{**given, "vocab_size": _VOCABULARY_SIZE})
    config = Idefics3Config(
        vision_config=Idefics3VisionConfig(
            hidden_size=96,
            intermediate_size=256,
            num_hidden_layers=3,
            num_attention_heads=4,
            image_size=IMAGE_SIDE,
            patch_size=PATCH,
        ),
        text_config=text_config,
        scale_factor=2,
        tie_word_embeddings=True,
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE_TOKEN),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype=torch.float32,
    )
    model = Idefics3ForConditionalGeneration(config)
    text.resize_token_embeddings(_VOCABULARY_SIZE)
    model.model.text_model.load_state_dict(text.model.state_dict())
    model.tie_weights()
    return model
