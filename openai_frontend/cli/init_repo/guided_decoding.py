"""What TensorRT-LLM's guided decoding has to know of a tokenizer: a file that xgrammar reads."""

import json
from pathlib import Path
from typing import Any

from openai_frontend.cli.init_repo.options import InvalidOption, read_json
from openai_frontend.errors import ModelUnavailable
from openai_frontend.prompting import tokenizer
from openai_frontend.prompting.tokenizer import Tokenizer


def tokenizer_info(folder: Path) -> str | None:
    """The file's text: the vocabulary by id, tokenizer.json, and what ends an answer.

    None where the folder has no tokenizer.json, of which alone it can be made.
    """
    if not (folder / "tokenizer.json").is_file():
        return None
    try:
        loaded = tokenizer.load(folder)
    except ModelUnavailable as error:
        raise InvalidOption("--tokenizer", f"{folder}: {error.message}") from None
    info = {
        "encoded_vocab": _vocabulary(loaded),
        "tokenizer_str": loaded.fast.to_str(),
        "stop_token_ids": _stop_token_ids(folder, loaded),
    }
    return json.dumps(info, ensure_ascii=False)


def _vocabulary(loaded: Tokenizer) -> list[str]:
    ids = loaded.fast.get_vocab(with_added_tokens=True)
    tokens = [""] * (max(ids.values()) + 1)  # an id that nothing has is a token of no text
    for token, number in ids.items():
        tokens[number] = token
    return tokens


def _stop_token_ids(folder: Path, loaded: Tokenizer) -> list[int]:
    path = folder / "generation_config.json"
    said: Any = read_json("--tokenizer", path).get("eos_token_id") if path.is_file() else None
    if said is None:
        said = loaded.fast.token_to_id(loaded.special_tokens.get("eos_token", ""))
    return [number for number in (said if isinstance(said, list) else [said]) if number is not None]
