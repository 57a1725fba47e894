"""Text of whole answers, decoded at once, is that of streams and of vLLM's own detokenizer."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders

from openai_frontend.engines.vllm.text_decoding import TextDecoding, VLLMText, WholeText
from tests.core.triton.test_decode_stream import byte_level
from tests.fast.prompting import vocabularies
from tests.gateway_process import ROOT

pytestmark = pytest.mark.engine

SHIPPED = ["demo", "demo-speech", "demo-vision", "demo-embedding"]
WORDS = "Do you speak français? 你好世界 😀 \n\n  a\tb 'quoted' don't"


def metaspace() -> Tokenizer:
    made = vocabularies.sentencepiece()
    made.decoder = decoders.Metaspace()
    return made


def undecoded() -> Tokenizer:
    return vocabularies.of_words("one", "two", "three", ".")


MADE = {
    "byte level": lambda: byte_level(b" the", b"\x9f\x98", b"\x80\xe1\x80"),
    "sentencepiece": vocabularies.sentencepiece,
    "metaspace": metaspace,
    "word piece": vocabularies.word_piece,
    "no decoder": undecoded,
}


def wrapped(name: str) -> Any:
    """As vLLM has it, with tokens of all kinds."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if name in SHIPPED:
        made = AutoTokenizer.from_pretrained(ROOT / "model_repository" / name / "1" / "weights")
    else:
        made = PreTrainedTokenizerFast(tokenizer_object=MADE[name]())
    made.add_tokens([AddedToken("<call>", special=False), AddedToken("<end>", special=True)])
    return made


@pytest.fixture(scope="module", params=[*SHIPPED, *MADE])
def tokenizer(request) -> Any:
    return wrapped(request.param)


def decoding_of(tokenizer: Any) -> TextDecoding:
    decoding = TextDecoding.of(tokenizer)
    assert decoding is not None
    return decoding


def request_of(prompt: list[int], **params: Any) -> Any:
    from vllm.sampling_params import SamplingParams

    return SimpleNamespace(
        request_id="r", prompt_token_ids=prompt, sampling_params=SamplingParams(**params)
    )


def of_vllm(decoding: TextDecoding, request: Any, ids: list[int], *, stopped: bool) -> str:
    """The reference: vLLM's detokenizer, which gets one id at a time."""
    reference = VLLMText(decoding, request, request.prompt_token_ids[-8:])
    text = "".join(reference.take([each], ended=False, stopped=False)[0] for each in ids[:-1])
    return text + reference.take(ids[-1:], ended=True, stopped=stopped)[0]


def any_ids(tokenizer: Any) -> st.SearchStrategy[list[int]]:
    """Text, tokens at random, bytes that form no character, and special tokens."""
    size = len(tokenizer)
    words = st.text(st.sampled_from(WORDS), max_size=20).map(
        lambda text: tokenizer.encode(text, add_special_tokens=False)
    )
    few = st.sampled_from([*range(min(size, 4)), *range(max(size - 3, 0), size)])
    drawn = st.lists(st.integers(0, size - 1) | few, max_size=12)
    return st.lists(words | drawn, max_size=4).map(
        lambda parts: [i for part in parts for i in part]
    )


@pytest.mark.slow
@given(data=st.data())
def test_whole_text_is_that_of_vllms_detokenizer(tokenizer, data):
    """Whatever the ids, how they arrive, and how the output ends."""
    decoding = decoding_of(tokenizer)
    prompt, ids = data.draw(any_ids(tokenizer)), data.draw(any_ids(tokenizer)) or [0]
    stopped, cut = data.draw(st.booleans()), data.draw(st.integers(0, len(ids) - 1))
    request = request_of(
        prompt,
        skip_special_tokens=data.draw(st.booleans()),
        include_stop_str_in_output=data.draw(st.booleans()),
    )

    whole = decoding.text(request, prompt, whole=True)
    streamed = decoding.text(request, prompt, whole=False)
    texts = {
        one: one.more(ids[:cut]) + one.take(ids[cut:], ended=True, stopped=stopped)[0]
        for one in (whole, streamed)
    }

    assert isinstance(whole, WholeText)
    assert texts[whole] == texts[streamed] == of_vllm(decoding, request, ids, stopped=stopped)


@pytest.mark.parametrize("name", ["demo", "byte level", "sentencepiece", "metaspace"])
def test_text_of_whole_characters_is_decoded_once(name, monkeypatch):
    """Usual answers do not need the stream."""
    tokenizer = wrapped(name)
    decoding = decoding_of(tokenizer)
    ids = tokenizer.encode("hello world", add_special_tokens=False)
    text = decoding.text(request_of(ids), ids, whole=True)
    monkeypatch.setattr(decoding, "stream", None)

    assert text.more(ids[:1]) == ""
    assert text.take(ids[1:], ended=True, stopped=False) == (
        decoding.whole(ids, ids, skip=True),
        ids[1:],
        None,
    )


@pytest.mark.parametrize(
    ("params", "kind"),
    [
        ({"stop": ["x"]}, VLLMText),
        ({"skip_special_tokens": False, "spaces_between_special_tokens": False}, VLLMText),
        ({"skip_special_tokens": False}, WholeText),
        ({}, WholeText),
    ],
)
def test_only_what_needs_it_uses_vllms_detokenizer(params, kind):
    decoding = decoding_of(wrapped("byte level"))

    assert type(decoding.text(request_of([1], **params), [1], whole=True)) is kind


def test_decoder_whose_texts_do_not_join_is_not_decoded_at_once():
    """The last token of such a text has no space after it, whichever it is."""
    from transformers import PreTrainedTokenizerFast

    made = undecoded()
    made.decoder = decoders.BPEDecoder()
    decoding = decoding_of(PreTrainedTokenizerFast(tokenizer_object=made))

    assert not isinstance(decoding.text(request_of([1]), [1], whole=True), WholeText)


@pytest.mark.parametrize("whole", [False, True])
def test_prompt_that_ends_within_a_character_is_not_repeated(whole):
    """A prompt of token ids may end within a character: the answer starts with that character."""
    tokenizer = wrapped("demo")
    *prompt, last = tokenizer.encode("Do you speak français, é")

    text = decoding_of(tokenizer).text(request_of(prompt), prompt, whole=whole)

    assert tokenizer.decode(prompt).endswith("\ufffd")
    assert text.take([last], ended=True, stopped=False) == ("é", [last], None)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("token_id", [-1, 2**32, 2**31 - 1])
def test_invalid_id_has_no_text(whole, token_id):
    tokenizer = wrapped("demo")
    ids = tokenizer.encode("hello")

    text = decoding_of(tokenizer).text(request_of(ids), ids, whole=whole)

    assert text.take([*ids, token_id, *ids], ended=True, stopped=False)[0].count("hello") == 2


@pytest.mark.parametrize("whole", [False, True])
def test_panic_of_the_tokenizer_fails_one_request(whole):
    """It is no Exception, and would end the loop that decodes for all requests."""

    class Panic(BaseException):
        pass

    class Panicking:
        decoder = None

        def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
            raise Panic

    class PanickingStream:
        def __init__(self, ids: list[int], *, skip_special_tokens: bool) -> None:
            pass

        def step(self, tokenizer: Any, token_id: int) -> str:
            raise Panic

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoders, "DecodeStream", PanickingStream)
        text = TextDecoding(None, Panicking()).text(request_of([]), [], whole=whole)
        with pytest.raises(RuntimeError, match="tokenizer failed"):
            text.take([1], ended=True, stopped=False)
