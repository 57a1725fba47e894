from typing import Any

import pytest

from openai_frontend.errors import ContextLengthExceeded, InvalidRequest, QueueFull
from openai_frontend.media.modalities import ImageSupport
from openai_frontend.serving.admission.concurrency_limit import ConcurrencyLimiter
from openai_frontend.serving.admission.permit import Admission
from openai_frontend.serving.dialects.chat import complete
from openai_frontend.serving.output.completion_job import CompletionJob
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from openai_frontend.serving.request.response_options import StreamDefaults
from schemas.chat_completions import ChatCompletionRequest
from tests import images
from tests.fast.serving.fake_model import FakeModel, chat_completions

CHAT = chat_completions(InferenceLimits(max_n=8, max_messages=4, max_output_tokens=3000))


async def prepare(model: FakeModel, **fields: Any) -> CompletionJob:
    fields = {"messages": [{"role": "user", "content": "hello"}], **fields}
    request = ChatCompletionRequest.model_validate({"model": "fake", **fields})
    return await CHAT.prepare(request, model)  # type: ignore[arg-type]


async def prepared_by(policy: FieldPolicy, model: FakeModel, **fields: Any) -> CompletionJob:
    chat = chat_completions(policy=policy)
    body = {"model": "fake", "messages": [{"role": "user", "content": "hello"}], **fields}
    return await chat.prepare(ChatCompletionRequest.model_validate(body), model)  # type: ignore[arg-type]


FIVE = StreamDefaults(interval=5)
INTERVALS = [
    ({}, "", (5, False)),
    ({"stream_interval": 3}, "", (3, False)),
    ({}, "stream_interval", (1, True)),
    ({"return_token_ids": True}, "", (1, True)),
    ({"logprobs": True}, "", (1, True)),
    (
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        "",
        (1, True),
    ),
]


@pytest.mark.parametrize(("fields", "unsupported", "expected"), INTERVALS)
async def test_engine_merges_plain_text_at_the_request_interval(fields, unsupported, expected):
    """If the request has none, the server's interval applies."""
    chat = chat_completions(stream_defaults=FIVE)
    body = {"model": "fake", "messages": [{"role": "user", "content": "hello"}], "stream": True}
    request = ChatCompletionRequest.model_validate({**body, **fields})

    model = FakeModel(unsupported=frozenset([unsupported]))
    answer = await chat.prepare(request, model)  # type: ignore[arg-type]

    of_engine, of_gateway = expected
    assert answer.requests[0].stream_interval == of_engine
    assert answer.requests[0].return_token_ids == of_gateway or not of_gateway
    assert (answer.options.interval > 1 and not answer.options.coalesced_by_engine) == of_gateway


async def test_rendered_conversation_reaches_the_model():
    """The model gets it as text and as token ids."""

    answer = await prepare(FakeModel())

    [request] = answer.requests
    assert ("hello", [ord(letter) for letter in "hello"]) == (
        request.prompt,
        request.prompt_token_ids,
    )


MAX_TOKENS = [
    ({}, 95),
    ({"max_tokens": 10}, 10),
    ({"max_tokens": -1}, 95),
    ({"max_completion_tokens": -1, "max_tokens": 10}, 95),
    ({"max_completion_tokens": 20}, 20),
    ({"max_tokens": 10, "max_completion_tokens": 20}, 20),
]


@pytest.mark.honours("chat.max_completion_tokens")
@pytest.mark.parametrize(("fields", "expected"), MAX_TOKENS)
async def test_max_completion_tokens_wins_over_max_tokens(fields, expected):
    """Without either field, or with -1, an answer may fill the context."""

    answer = await prepare(FakeModel(max_model_len=100), **fields)

    assert expected == answer.requests[0].sampling_params.max_tokens


@pytest.mark.parametrize("n", [1, 3])
async def test_unlimited_choice_counts_as_the_context_length(n):
    """The request's own limit replaces it."""
    model = FakeModel(max_model_len=1005)  # the prompt has 5 tokens

    assert len((await prepare(model, n=n, max_tokens=1000)).requests) == n
    assert len((await prepare(model, n=n)).requests) == n


async def test_total_tokens_beyond_the_limit_are_refused():
    """The error names the field."""
    with pytest.raises(InvalidRequest, match="4 choices of up to 1000 tokens") as refused:
        await prepare(FakeModel(max_model_len=1005), n=4)

    assert (refused.value.param, refused.value.code) == ("n", "integer_above_max_value")


async def test_unknown_context_length_leaves_max_tokens_unset():
    """The model itself ends the answer."""

    answer = await prepare(FakeModel())

    assert answer.requests[0].sampling_params.max_tokens is None


async def test_conversation_beyond_the_context_is_refused():
    """The check runs before generation starts."""
    model = FakeModel(max_model_len=5)

    with pytest.raises(ContextLengthExceeded) as refused:
        await prepare(model)

    assert refused.value.param == "messages"
    assert model.requests == []


async def test_n_choices_are_n_requests():
    """They differ only in id and seed."""

    answer = await prepare(FakeModel(), n=3, seed=7, temperature=0.5)

    assert len({request.request_id for request in answer.requests}) == 3
    assert [request.sampling_params.seed for request in answer.requests] == [7, 8, 9]
    assert {0.5} == {request.sampling_params.temperature for request in answer.requests}


async def test_each_answer_gets_new_request_ids():
    """Engines refuse an id that is already in use."""
    first, second = await prepare(FakeModel()), await prepare(FakeModel())

    assert first.id.startswith("chatcmpl-")
    assert first.requests[0].request_id != second.requests[0].request_id


@pytest.mark.honours("chat.add_generation_prompt", "chat.chat_template_kwargs")
async def test_template_gets_every_option_of_the_request():
    model = FakeModel()
    document = {"title": "t", "text": "x"}

    await prepare(
        model,
        add_generation_prompt=False,
        add_special_tokens=True,
        documents=[document],
        chat_template_kwargs={"enable_thinking": False},
    )

    [(_, options)] = model.rendered
    assert options.pop("extra_characters") > 0
    assert options == {
        "add_generation_prompt": False,
        "add_special_tokens": True,
        "continue_final_message": False,
        "documents": [document],
        "media": None,
        "template_kwargs": {"enable_thinking": False},
        "tools": (),
        "truncation": None,
        "within_context": True,
    }


VARIABLES: list[tuple[dict[str, Any], set[str], dict[str, Any]]] = [
    ({"reasoning_effort": "low"}, {"reasoning_effort"}, {"reasoning_effort": "low"}),
    ({"reasoning_effort": "low"}, {"enable_thinking"}, {"enable_thinking": True}),
    ({"reasoning_effort": "none"}, {"thinking"}, {"thinking": False}),
    ({"reasoning_effort": "none"}, set(), {}),
    ({"verbosity": "low"}, {"verbosity"}, {"verbosity": "low"}),
    ({"verbosity": "medium"}, set(), {}),
    (
        {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
        {"enable_thinking"},
        {"enable_thinking": False},
    ),
]


@pytest.mark.honours("chat.reasoning_effort", "chat.verbosity")
@pytest.mark.parametrize(("fields", "known", "expected"), VARIABLES)
async def test_effort_and_verbosity_use_the_template_variables(fields, known, expected):
    """A variable that the request itself sets wins."""
    model = FakeModel(template_variables=frozenset(known))

    await prepare(model, **fields)

    [(_, options)] = model.rendered
    assert expected == options["template_kwargs"]


@pytest.mark.honours("chat.reasoning_effort")
@pytest.mark.parametrize(
    ("asked", "known", "expected", "reported"),
    [
        ("high", "reasoning_effort", {"reasoning_effort": "max"}, {"reasoning_effort": "max"}),
        ("low", "reasoning_effort", {"reasoning_effort": "low"}, {}),
        ("minimal", "enable_thinking", {"enable_thinking": False}, {"reasoning_effort": "none"}),
    ],
)
async def test_effort_of_the_operator_replaces_the_requests(asked, known, expected, reported):
    """No policy rejects it, and the response reports it."""
    model = FakeModel(template_variables=frozenset({known}))
    model.reasoning_effort_map = {"high": "max", "minimal": "none"}

    job = await prepare(model, reasoning_effort=asked)

    [(_, options)] = model.rendered
    assert options["template_kwargs"] == expected
    assert job.adjusted == reported


HINTS = [{"reasoning_effort": "high"}, {"verbosity": "high"}]


@pytest.mark.refuses("chat.reasoning_effort", "chat.verbosity")
@pytest.mark.parametrize("fields", HINTS, ids=str)
async def test_unknown_hint_is_refused_with_unknown_fields_reject(fields):
    """With `--unknown-fields reject`, a hint that has no effect is an error."""
    [name] = fields

    with pytest.raises(InvalidRequest) as refused:
        await prepare(FakeModel(), **fields)

    assert (name, "unsupported_value") == (refused.value.param, refused.value.code)


CLAMPED = [
    ("minimal", {"low", "medium", "high"}, "low"),
    ("max", {"low", "medium", "high"}, "high"),
    ("low", {"none", "high"}, "none"),
    ("medium", {"none", "high"}, "high"),
    ("high", set(), "high"),
]


@pytest.mark.parametrize(("asked", "accepted", "used"), CLAMPED)
async def test_effort_is_clamped_to_the_nearest_supported_one(asked, accepted, used):
    model = FakeModel(
        template_variables=frozenset({"reasoning_effort"}), template_values=frozenset(accepted)
    )
    policy = FieldPolicy("warn")

    answer = await prepared_by(policy, model, reasoning_effort=asked)

    assert model.rendered[0][1]["template_kwargs"] == {"reasoning_effort": used}
    assert answer.adjusted == ({} if used == asked else {"reasoning_effort": used})


async def test_adjusted_hints_are_logged_once_per_model(caplog):
    """The line has the model, the field and the value used."""
    policy = FieldPolicy("warn")

    for _ in range(2):
        await prepared_by(policy, FakeModel(), verbosity="low")

    assert [record.getMessage() for record in caplog.records] == [
        "model fake: its chat template does not support a request's verbosity; used=ignored "
        "(logged once for each model and field)"
    ]


PREFILLED = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "He"}]


async def test_continue_final_message_continues_the_last_message():
    model = FakeModel()

    await prepare(model, messages=PREFILLED, continue_final_message=True)

    [(_, options)] = model.rendered
    assert (options["continue_final_message"], options["add_generation_prompt"]) == (True, False)


@pytest.mark.honours("chat.echo")
async def test_echo_puts_the_prefilled_text_before_the_answer():
    """`echo` is a field of vLLM."""
    answer = await prepare(FakeModel(), messages=PREFILLED, continue_final_message=True, echo=True)

    completion = await complete(answer)

    assert completion["choices"][0]["message"]["content"] == "HeHello"


REFUSED = [
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"top_logprobs": 1}, "top_logprobs"),
    ({"top_logprobs": 0, "logprobs": False}, "top_logprobs"),
    ({"continue_final_message": True}, "continue_final_message"),
    (
        {"messages": PREFILLED, "continue_final_message": True, "add_generation_prompt": True},
        "continue_final_message",
    ),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
async def test_invalid_request_is_refused_before_rendering(fields, param):
    model = FakeModel()

    with pytest.raises(InvalidRequest) as refused:
        await prepare(model, **fields)

    assert param == refused.value.param
    assert model.rendered == []


async def test_prompt_logprobs_come_once_per_chat():
    """Only one request asks for them, however many choices the chat has."""
    answer = await prepare(FakeModel(), n=3, prompt_logprobs=1)

    asked = [request.sampling_params.prompt_logprobs for request in answer.requests]
    assert asked == [1, None, None]


async def test_prompt_logprobs_that_would_exhaust_memory_are_refused():
    """The error names the field."""
    with pytest.raises(InvalidRequest) as refused:
        await prepare(
            FakeModel(),
            messages=[{"role": "user", "content": "a" * 20_000}],
            prompt_logprobs=20,
        )

    assert refused.value.param == "prompt_logprobs"


LOGPROBS: list[tuple[dict[str, Any], int | None]] = [
    ({}, None),
    ({"logprobs": False}, None),
    ({"logprobs": True}, 0),
    ({"logprobs": True, "top_logprobs": 0}, 0),
    ({"logprobs": True, "top_logprobs": 20}, 20),
]


@pytest.mark.parametrize(("fields", "expected"), LOGPROBS)
async def test_engine_gets_the_requested_number_of_logprobs(fields, expected):
    answer = await prepare(FakeModel(), **fields)

    assert expected == answer.requests[0].sampling_params.logprobs


@pytest.mark.honours("chat.service_tier", "chat.metadata")
async def test_answer_repeats_service_tier_and_metadata():
    """They appear if the request had them. The system fingerprint always appears."""
    plain = await complete(await prepare(FakeModel()))
    told = await complete(
        await prepare(FakeModel(), service_tier="auto", metadata={"a": "b"}, store=True)
    )

    assert {"service_tier", "metadata"} == told.keys() - plain.keys()
    assert (told["service_tier"], told["metadata"]) == ("default", {"a": "b"})
    assert told["system_fingerprint"] == plain["system_fingerprint"]
    assert told["system_fingerprint"].startswith("fp_")


async def test_prompt_length_limit_of_the_server():
    """It is independent of the model's context and applies to /render too."""
    chat = chat_completions(InferenceLimits(max_prompt_tokens=5))
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "five!"}])
    longer = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "sixsix"}])
    model: Any = FakeModel()

    assert len((await chat.build_job(request, model)).requests[0].prompt_token_ids or ()) == 5
    for read in (chat.prepare, chat.build_job):
        with pytest.raises(InvalidRequest) as refused:
            await read(longer, model)
        assert (refused.value.param, refused.value.code) == ("messages", "max_tokens_per_request")


@pytest.mark.parametrize(
    ("limits", "fields", "code"),
    [
        ({"max_prompt_tokens": 900}, {}, "max_tokens_per_request"),
        ({}, {"max_tokens": 700}, "context_length_exceeded"),
    ],
)
async def test_tokens_of_images_count(limits, fields, code):
    """As the engine counts them: 1,000 for an image, whose placeholder is one token."""
    chat = chat_completions(InferenceLimits(**limits))
    shown = [{"type": "text", "text": "what?"}, images.part(images.png())]
    sent: Any = {"model": "m", "messages": [{"role": "user", "content": shown}], **fields}
    known, unknown = ([1] * 1000, None)

    for tokens in (known, unknown):
        model: Any = FakeModel(max_model_len=1500)
        model.images = ImageSupport(placeholder="~", target=[ord("~")], tokens=tokens)
        read = chat.build_job(ChatCompletionRequest.model_validate(sent), model)
        if tokens is unknown:  # the engine refuses it, if it does not fit
            assert len((await read).requests[0].images) == 1
            continue
        with pytest.raises(InvalidRequest) as refused:
            await read
        assert (refused.value.param, refused.value.code) == ("messages", code)


async def test_full_queue_refuses_before_rendering():
    chat = chat_completions(admitted=Admission(limiter := ConcurrencyLimiter(1)))
    model: Any = FakeModel()
    await limiter.slots_for(model).acquire(1)
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "a"}])

    with pytest.raises(QueueFull):
        await chat.prepare(request, model)

    assert model.rendered == []
