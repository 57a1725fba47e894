"""`preprocessing` of a TensorRT-LLM pipeline: text in, token ids out."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tests.api.backends.standins.tensors import array, parameter, scalar, texts

Ids = NDArray[np.int32]


class TritonPythonModel:
    """Every tensor has a batch dimension of one."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        folder = Path(parameter(config, "tokenizer_dir"))
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.adds_special = parameter(config, "add_special_tokens", "true").lower() == "true"
        vocabulary = self.tokenizer.get_vocab()
        special = json.loads((folder / "tokenizer_config.json").read_text())
        self.end_id = vocabulary[special["eos_token"]]
        pad = special.get("pad_token") or special["eos_token"]
        self.pad_id = vocabulary[pad]

    def execute(self, requests: list[Any]) -> list[Any]:
        return [pb_utils.InferenceResponse(self.outputs(request)) for request in requests]

    def outputs(self, request: Any) -> list[Any]:
        [query] = texts(request, "QUERY")
        decoder_query = texts(request, "DECODER_QUERY")
        ids = self.ids(query)
        decoder_ids = self.ids(decoder_query[0]) if decoder_query else [self.pad_id]
        arrays: dict[str, Any] = {
            "INPUT_ID": _row(ids),
            "REQUEST_INPUT_LEN": _row([len(ids)]),
            "DECODER_INPUT_ID": _row(decoder_ids),
            "REQUEST_DECODER_INPUT_LEN": _row([len(decoder_ids)]),
            "BAD_WORDS_IDS": self.words(texts(request, "BAD_WORDS_DICT")),
            "STOP_WORDS_IDS": self.words(texts(request, "STOP_WORDS_DICT")),
            "EMBEDDING_BIAS": self.bias(request),
            "REQUEST_OUTPUT_LEN": array(request, "REQUEST_OUTPUT_LEN"),
            "OUT_END_ID": _row([scalar(request, "END_ID", self.end_id)]),
            "OUT_PAD_ID": _row([scalar(request, "PAD_ID", self.pad_id)]),
        }
        if (extra := array(request, "PROMPT_TABLE_EXTRA_ID")) is not None:
            beyond = np.array([ids]) >= self.tokenizer.get_vocab_size()
            arrays["OUT_PROMPT_TABLE_EXTRA_IDS"] = np.where(beyond, extra, 0).astype(np.uint64)
        return [pb_utils.Tensor(name, given) for name, given in arrays.items()]

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=self.adds_special).ids
        return ids

    def words(self, words: list[str]) -> Ids:
        """[1, 2, tokens]: the tokens of all words, and the end offset of each word, padded with
        -1.
        """
        split = [self.tokenizer.encode(word, add_special_tokens=False).ids for word in words]
        flat = [token for word in split for token in word]
        if not flat:
            return np.empty((1, 2, 0), np.int32)
        ends = np.cumsum([len(word) for word in split if word]).tolist()
        return np.array([[flat, ends + [-1] * (len(flat) - len(ends))]], np.int32)

    def bias(self, request: Any) -> NDArray[np.float32]:
        """[1, vocabulary], or [1, 0] without a bias."""
        words = texts(request, "EMBEDDING_BIAS_WORDS")
        weights = array(request, "EMBEDDING_BIAS_WEIGHTS")
        if not words or weights is None:
            return np.empty((1, 0), np.float32)
        bias = np.zeros((1, self.tokenizer.get_vocab_size()), np.float32)
        for word, weight in zip(words, weights.ravel(), strict=True):
            for token in self.tokenizer.encode(word).ids:
                bias[0, token] += weight
        return bias


def _row(values: list[int]) -> Ids:
    return np.array([values], np.int32)
