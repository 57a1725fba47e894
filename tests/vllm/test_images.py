"""Images in prompts, with the real engine and the demo vision model."""

import asyncio
import random
from array import array
from collections.abc import AsyncIterator, Callable
from typing import Any

import psutil
import pytest
import pytest_asyncio
from PIL import Image

from openai_frontend import errors
from openai_frontend.engines.vllm import capabilities, versions
from openai_frontend.generation import merge_deltas
from openai_frontend.media.modalities import positions
from openai_frontend.media.stages import LOG
from openai_frontend.triton import Server, inprocess
from scripts.demo_vision import questions
from scripts.demo_vision.pictures import Scene, draw_scene, paint
from tests.vllm.conftest import Models, needs, needs_step_loop
from tests.vllm.pictures import FOLDER, MODEL, WEIGHTS, ask, tensors
from tests.vllm.requests import collect, contract, request

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="session"),
    needs(capabilities.IMAGES),
]

ASYNC_LLM = f"{MODEL}-async-llm"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(models_beside: Models) -> AsyncIterator[Server]:
    """The core, with the demo vision model in the step loop and through AsyncLLM."""
    import shutil

    for name, step_loop in ((MODEL, "true"), (ASYNC_LLM, "false")):
        shutil.copytree(FOLDER, models_beside.repository / name)
        config = models_beside.repository / name / "config.pbtxt"
        added = f'parameters {{ key: "step_loop" value: {{ string_value: "{step_loop}" }} }}\n'
        config.write_text(config.read_text() + added)
    async with models_beside.loaded(MODEL, ASYNC_LLM) as core:
        yield core


@pytest.fixture(scope="module")
def prompt() -> Callable[..., list[int]]:
    """Token ids of a chat, as the gateway renders it: one placeholder for each image."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(WEIGHTS)

    def render(*messages: Any) -> list[int]:
        text = tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, tokenize=False
        )
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return ids

    return render


def user(question: str, images: int = 1) -> dict[str, Any]:
    parts = [{"type": "image"}] * images + [{"type": "text", "text": question}]
    return {"role": "user", "content": parts}


def picture(seed: int, *, width: int = 320, height: int = 240) -> Image.Image:
    """A drawing that no other seed gives."""
    rng = random.Random(seed)
    return paint(rng, draw_scene(rng, "train"), width, height)


def images_of(model: str = MODEL) -> Any:
    host: Any = inprocess.handle(model)
    return host._engine._media


def runs(model: str = MODEL) -> int:
    """How often the model's processor has run."""
    found: int = images_of(model).caches[0]._pool.runs
    return found


COUNT = "How many shapes are there?"


async def test_engine_reports_what_it_takes(server: Server):
    """The gateway's capabilities and limits of the model, and the tokens that every image has."""
    facts = server.model_facts(MODEL)
    assert facts is not None
    assert facts.images is not None
    images = facts.images

    (placeholder,) = images.target
    found = images.max_per_request, images.max_tokens_per_image, images.placeholder
    assert found == (8, 16, "<image>")
    assert images.tokens is not None
    assert list(images.tokens).count(placeholder) == 16


async def right_of(
    server: Server, prompt: Callable[..., list[int]], kind: str, of: int, most: int
) -> tuple[int, list[str]]:
    """How many of the questions of a kind about fresh drawings are answered to the letter."""
    asked = questions.scored_questions(31, "train", of, kinds=[kind], most=most)
    drawn = random.Random(kind)

    async def answered(scene: Scene, message: Any, expected: str) -> str:
        image = tensors([paint(drawn, scene, 640, 480)])
        text = (await ask(server, prompt(message), image)).text
        return "" if text == expected else f"{expected} -> {text}"

    wrong = await asyncio.gather(*(answered(*each[1:]) for each in asked))
    return of - sum(map(bool, wrong)), [each for each in wrong if each]


@pytest.mark.parametrize(("kind", "most"), [("colour", 1), ("count", 4)])
async def test_answers_about_fresh_drawings_are_right(server: Server, prompt, kind, most):
    """At least 95 % of 40: the colour of one shape, and the number of up to four."""
    right, wrong = await right_of(server, prompt, kind, 40, most)

    assert right >= 38, wrong


async def test_both_generation_paths_give_the_same(server: Server, prompt):
    """In the step loop and through AsyncLLM.generate, streamed or not, with log probabilities."""
    ids, image = prompt(user("Describe the picture.")), tensors([picture(1)])

    answers = [
        await ask(server, ids, image, model=model, **options)
        for model in (MODEL, ASYNC_LLM)
        for options in ({}, {"stream": False}, {"logprobs": 1})
    ]

    assert {each.text for each in answers} == {answers[0].text}
    assert answers[0].text.startswith("I see ")
    # One placeholder becomes 19 tokens, 16 of which stand for the image.
    for each in answers:
        assert each.counts is not None
        assert (each.counts.prompt_tokens, each.counts.image_tokens) == (len(ids) + 18, 16)


@pytest.mark.parametrize("model", [MODEL, ASYNC_LLM])
async def test_stages_are_those_of_the_request_in_triton(
    server: Server, prompt, monkeypatch, model
):
    """The gateway knows a request by no other id. A known image has none."""
    monkeypatch.setattr(LOG, "enabled", True)
    ids, image = prompt(user(COUNT)), tensors([picture(71 if model == MODEL else 72)])

    stages = []
    for _ in range(2):
        await ask(server, ids, image, model=model, max_tokens=1)
        stages.append({each.name for each in LOG.take("test")})

    assert stages == [{"image queue", "image decode", "image preprocess"}, set()]


async def test_several_images_keep_their_order(server: Server, prompt):
    """Two in one message, and two in different messages."""
    scenes = [draw_scene(random.Random(seed), "train", 1) for seed in (3, 4)]
    drawn = [paint(random.Random(9), scene, 300, 300) for scene in scenes]
    both = prompt(user("Describe both pictures.", 2))
    first = user("Describe the picture.")
    said = {"role": "assistant", "content": f"I see {questions.listed(scenes[0])}."}
    turns = prompt(first, said, first)

    answers = [await ask(server, ids, tensors(drawn)) for ids in (both, turns)]
    swapped = await ask(server, both, tensors(drawn[::-1]))

    one, other = map(questions.listed, scenes)
    assert one != other
    assert answers[0].text == f"First {one}, then {other}."
    assert answers[1].text == f"I see {other}."
    assert swapped.text == f"First {other}, then {one}."
    assert answers[0].counts is not None
    assert answers[0].counts.image_tokens == 32


async def test_known_image_costs_no_processor_run(server: Server, prompt):
    """In another question, twice in a request, and while the first run is under way."""
    ids, before = prompt(user(COUNT)), runs()
    image = tensors([picture(20)])

    await asyncio.gather(*(ask(server, ids, image) for _ in range(5)))
    await ask(server, prompt(user("What do you see?")), image)
    await ask(server, prompt(user("Describe both pictures.", 2)), tensors([picture(20)] * 2))

    assert runs() - before == 1


async def test_detail_low_is_an_image_of_its_own(server: Server, prompt):
    ids, before = prompt(user(COUNT)), runs()

    for detail in ("low", "high", "auto", "original", "low"):
        await ask(server, ids, tensors([picture(21)], detail=detail))

    assert runs() - before == 2


@needs_step_loop
async def test_image_that_the_engine_lost_is_sent_again(server: Server, prompt, caplog):
    """The client does not notice: plain text, and log probabilities, which vLLM collects."""
    if not versions.installed().has(capabilities.MEDIA_CACHE):
        pytest.skip("this vLLM does not report lost images; each request has its own")
    ids, image = prompt(user("Describe the picture.")), tensors([picture(22)])
    expected = await ask(server, ids, image)
    engine = inprocess.handle(MODEL)._engine
    sent = engine._steps._media
    resends = sent.resends

    given: list[dict[str, Any]] = [{}, {"logprobs": 1}, {}]
    for options in given:
        await engine._engine.engine_core.reset_mm_cache_async()
        answer = await ask(server, ids, image, **options)
        assert (answer.text, answer.counts.prompt_tokens) == (
            expected.text, expected.counts.prompt_tokens
        )  # fmt: skip

    assert sent.resends - resends == 3
    assert not sent.unanswered


async def test_unusable_image_fails_its_request_alone(server: Server, prompt):
    """The error says which image; a request at the same time is answered."""
    ids = prompt(user("Describe both pictures.", 2))
    good, bad = tensors([picture(23), picture(24)]), tensors([picture(23), picture(25)])
    bad["media_info"] = tensors([picture(23), picture(26)])["media_info"]

    answers = await asyncio.gather(
        ask(server, ids, good), ask(server, ids, bad), return_exceptions=True
    )

    assert not isinstance(answers[0], BaseException)
    assert isinstance(answers[1], errors.InvalidRequest)
    assert str(answers[1]) == "image[1]: its digest in media_info is that of another image"


REFUSED: list[tuple[str, int, int, str]] = [
    ("too few placeholders", 1, 2, "2 images, but the prompt has 1 placeholders"),
    ("too many placeholders", 2, 1, "1 images, but the prompt has 2 placeholders"),
    ("no placeholder", 0, 1, "1 images, but the prompt has 0 placeholders"),
    ("too many images", 9, 9, "image: at most 8, not 9"),
]


@pytest.mark.parametrize(
    ("placeholders", "given", "message"),
    [each[1:] for each in REFUSED],
    ids=[each[0] for each in REFUSED],
)
async def test_prompt_and_images_must_match(server: Server, prompt, placeholders, given, message):
    """Refused before any image is decoded."""
    before = runs()

    with pytest.raises(errors.InvalidRequest, match=message):
        await ask(server, prompt(user(COUNT, placeholders)), tensors([picture(30)] * given))

    assert runs() == before


async def test_prompt_that_is_too_long_with_its_images(server: Server, prompt):
    short = prompt(user(COUNT))
    ids = short + [40] * (2040 - len(short))  # 2058 with the image; the context is 2,048

    reason = "context: This model's maximum context length is 2048 tokens. However, the prompt has"
    with pytest.raises(errors.GatewayError, match=f"{reason} 2058 tokens with its images"):
        await ask(server, ids, tensors([picture(31)]))


async def test_cancelled_request_leaves_nothing_behind(server: Server, prompt):
    """A client that leaves while its image is processed. The engine never gets the request."""
    images, asked = images_of().caches[0], request(prompt(user(COUNT)))
    inputs = {**contract(server, MODEL).encode(asked), **tensors([picture(32, width=1500)])}

    await ask(server, prompt(user(COUNT)), tensors([picture(33)]))  # it leaves an idle worker
    workers = [psutil.Process(each.process_id) for each in images._pool._idle]
    for each in workers:
        each.suspend()
    stream = server.infer(MODEL, inputs, request_id="test")
    async with asyncio.timeout(300):
        while not images._preparing:  # noqa: ASYNC110  it gives no event for it
            await asyncio.sleep(0)
        stream.cancel()
        for each in workers:
            each.resume()
        while images._preparing or images._running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    assert not images._waiters
    assert inprocess.handle(MODEL)._engine.stats().running == 0
    assert (await ask(server, prompt(user(COUNT)), tensors([picture(32)]))).text


async def test_text_prompt_has_placeholders_as_text(server: Server):
    """As clients of NVIDIA's backend send it: text and base64, nothing else."""
    question = "<|im_start|>user\n<image>Describe the picture.<|im_end|>\n<|im_start|>assistant\n"
    asked = request(question, max_tokens=60)
    inputs = {**contract(server, MODEL).encode(asked), **tensors([picture(1)])}
    del inputs["media_info"]

    stream = server.infer(MODEL, inputs, request_id="test")

    assert merge_deltas(await collect(server, MODEL, stream, asked)).text.startswith("I see ")


async def test_text_only_requests_are_answered(server: Server, prompt):
    """With the text demo's words, and without image tokens."""
    question = [{"role": "user", "content": "What is Triton?"}]

    found = await ask(server, prompt(*question), {})

    assert "NVIDIA" in found.text
    assert found.counts is not None
    assert found.counts.image_tokens == 0


async def test_model_without_images_refuses_them(server: Server):
    with pytest.raises(errors.InvalidRequest, match="image: the model does not take images"):
        await ask(server, [40, 41], tensors([picture(1)]), model="demo")


async def test_placeholders_are_found():
    """One or several tokens per placeholder, without overlaps."""
    assert positions([1, 7, 7, 2, 7], [7]) == [1, 2, 4]
    assert positions([7, 7, 8, 7, 8, 7], [7, 8]) == [1, 3]
    assert positions(array("i", [5, 5, 5, 5, 5]), [5, 5]) == [0, 2]
    assert positions([], [7]) == []
