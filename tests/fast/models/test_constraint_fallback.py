"""Requests whose constraint the engine refuses."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from openai_frontend.errors import (
    ConstraintRefused,
    InferenceFailed,
    InvalidRequest,
    ModelUnavailable,
)
from openai_frontend.generation import (
    CompletionDelta,
    GenerationRequest,
    SamplingParams,
    StructuredOutputs,
)
from openai_frontend.models import constraint_fallback
from openai_frontend.serving.constraints.reduced_constraints import ReducedConstraints
from openai_frontend.serving.request.sampling import Constraint

PLACES = ("tools[0].function.parameters", "tools[1].function.parameters")
OWN = StructuredOutputs(regex="own")


def fallback(*places: str) -> ReducedConstraints:
    """Constraints that name the steps of all places, such as `2 1`."""

    def build(steps: Mapping[str, int]) -> Constraint:
        return Constraint(structured=StructuredOutputs(regex=" ".join(map(str, steps.values()))))

    return ReducedConstraints(dict.fromkeys(places or PLACES, 1), build)


def request(held: ReducedConstraints) -> GenerationRequest:
    places = [f"tools[{i}].function.parameters" for i in range(150)]
    names = {f"structured_outputs.schemas[{i}]": place for i, place in enumerate(places)}
    return GenerationRequest(
        request_id="r",
        sampling_params=SamplingParams(structured_outputs=OWN),
        field_names={**names, "structured_outputs": "tool_choice"},
        fallback=held,
    )


class Engine:
    """Refuses constraints, and then repeats the one that it accepts."""

    def __init__(self, *refusals: Exception) -> None:
        self.refusals = list(refusals)
        self.tried: list[str | None] = []

    async def begin(self, asked: GenerationRequest) -> AsyncGenerator[list[CompletionDelta], None]:
        structured = asked.sampling_params.structured_outputs
        assert structured is not None
        self.tried.append(structured.regex)
        if self.refusals:
            raise self.refusals.pop(0)
        yield [CompletionDelta(text=structured.regex or "")]

    async def answer(self, held: ReducedConstraints) -> str:
        bursts = constraint_fallback.generate(self.begin, request(held), held)
        return "".join([delta.text async for burst in bursts for delta in burst])


def refusal(param: str | None) -> InvalidRequest:
    """As an engine of this process makes it."""
    return ConstraintRefused("Invalid", param=param)


async def test_schema_that_the_engine_names_is_reduced():
    engine = Engine(refusal(f"{PLACES[0]}.properties.a"), refusal(PLACES[0]))

    assert await engine.answer(fallback()) == "3 1"
    assert engine.tried == ["own", "2 1", "3 1"]


async def test_every_schema_is_reduced_if_the_engine_names_none():
    engine = Engine(refusal("tool_choice"))

    assert await engine.answer(fallback()) == "2 2"


async def test_later_requests_begin_with_the_accepted_constraint():
    """They cost nothing more."""
    held, engine = fallback(), Engine(refusal(PLACES[1]))
    await engine.answer(held)

    assert await engine.answer(held) == "1 2"
    assert engine.tried == ["own", "1 2", "1 2"]


FAILURES = [
    InferenceFailed("Error generating stream: invalid grammar"),
    InferenceFailed("out of memory"),
    InvalidRequest("cannot parse the input"),
    InvalidRequest("Invalid 'tool_choice': as a client has written it", param="tool_choice"),
    InvalidRequest("Invalid: as a client has written it", param=PLACES[0]),
]


@pytest.mark.parametrize("error", FAILURES, ids=str)
async def test_failure_in_a_models_words_has_no_effect_on_later_requests(error: Any):
    """The request is tried once more, whatever the words: a client can make a model fail with any,
    also with those of a refused constraint.
    """
    held, engine = fallback(), Engine(error)

    assert await engine.answer(held) == "2 2"
    assert held.current is None


@pytest.mark.parametrize("error", FAILURES, ids=str)
async def test_second_failure_in_a_models_words_is_raised(error: Any):
    engine = Engine(error, error)

    with pytest.raises(type(error)):
        await engine.answer(fallback())
    assert engine.tried == ["own", "2 2"]


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("Invalid", param="bad_words"),
        refusal("tools[7].function.parameters.properties.a"),
        ModelUnavailable("the machine is too busy to compile the constraint"),
    ],
    ids=str,
)
async def test_other_errors_are_raised(error: Any):
    """Also the refusal of a strict function's schema. Later requests keep their constraint."""
    held, engine = fallback(), Engine(error)

    with pytest.raises(type(error)):
        await engine.answer(held)
    assert (engine.tried, held.current) == (["own"], None)


async def test_tries_are_bounded():
    """If the engine refuses the loosest constraint too, its error is the answer."""
    engine = Engine(*[refusal("tool_choice")] * 50)

    with pytest.raises(InvalidRequest):
        await engine.answer(fallback())
    assert engine.tried == ["own", "2 2", "3 3"]


async def test_many_refused_functions_take_few_tries():
    """After eight that the engine names, all are reduced together."""
    places = [f"tools[{i}].function.parameters" for i in range(150)]
    engine = Engine(*map(refusal, places[:10]))

    assert set((await engine.answer(fallback(*places))).split()) == {"3"}


async def test_refusal_within_an_answer_is_raised_and_helps_later_requests():
    """The client has the beginning of the answer already."""
    held, engine = fallback(), Engine()

    async def begin(asked: GenerationRequest) -> AsyncGenerator[list[CompletionDelta], None]:
        yield [CompletionDelta(text="a")]
        raise refusal(PLACES[0])

    bursts = constraint_fallback.generate(begin, request(held), held)
    assert [delta.text for delta in await anext(bursts)] == ["a"]
    with pytest.raises(ConstraintRefused):
        await anext(bursts)

    assert await engine.answer(held) == "2 1"
