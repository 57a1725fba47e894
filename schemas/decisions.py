"""OpenAI's Decisions resource: questions about one input, answered with probabilities."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, Discriminator, Field, Tag
from typing_extensions import TypedDict

from schemas.json_value import JSONObject, open_object
from schemas.responses import (
    MAX_INPUT_ITEMS,
    MAX_PARTS,
    CustomToolCallItem,
    FunctionCallItem,
    Text,
    form_of,
    type_of,
)
from schemas.sampling import ModelName, PromptCacheOptions, RequestFields

MAX_QUESTIONS = 400
MAX_CHOICES = 255
MAX_LEVELS = 255


@open_object
class DecisionPart(TypedDict):
    """A part of a message, of a tool's output or of a question: text, an image or JSON."""

    type: Literal["input_text", "output_text", "refusal", "input_image", "input_json"]
    text: NotRequired[str | None]
    refusal: NotRequired[str | None]
    image_url: NotRequired[str | None]
    detail: NotRequired[Literal["auto", "low", "high", "original"] | None]
    data: NotRequired[  # of an `input_json`
        Annotated[JSONObject, Tag("<an object>")]
        | Annotated[list[JSONObject], Tag("<an array of objects>")]
        | None
    ]


DecisionParts = Annotated[
    list[DecisionPart], Field(max_length=MAX_PARTS, fail_fast=True), Tag("<an array of objects>")
]
DecisionContent = Annotated[Text | DecisionParts, Discriminator(form_of)]


@open_object
class DecisionMessage(TypedDict):
    """A message of any role, with or without `type`."""

    role: Literal["user", "assistant", "system", "developer"]
    content: DecisionContent
    type: NotRequired[Literal["message"]]
    phase: NotRequired[Literal["commentary", "final_answer"] | None]


@open_object
class DecisionToolOutput(TypedDict):
    """The output of an earlier call in the input."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    output: DecisionContent
    call_id: str


def _item_kind(value: Any) -> str | None:
    """The tag of an input item. A message may have no type."""
    kind = type_of(value)
    if kind is None and isinstance(value, dict) and "type" not in value:
        return "<message>"
    return "<call_output>" if (kind or "").endswith("_output>") else kind


DecisionItem = Annotated[
    Annotated[DecisionMessage, Tag("<message>")]
    | Annotated[FunctionCallItem, Tag("<function_call>")]
    | Annotated[CustomToolCallItem, Tag("<custom_tool_call>")]
    | Annotated[DecisionToolOutput, Tag("<call_output>")],
    Discriminator(_item_kind),
]
DecisionItems = Annotated[
    list[DecisionItem],
    Field(min_length=1, max_length=MAX_INPUT_ITEMS, fail_fast=True),
    Tag("<an array of objects>"),
]


class ChoiceOption(RequestFields):
    """One of a question's choices."""

    value: Annotated[str, Tag("<a string>")] | Annotated[bool, Tag("<a boolean>")]
    description: str | None = None


class ScoreLevel(RequestFields):
    """One of a question's levels, lowest first."""

    label: str
    description: str | None = None


class Predicate(RequestFields):
    """How likely is it that the statement is true?"""

    type: Literal["predicate"]
    instructions: DecisionContent
    name: str | None = None


class ChoiceQuestion(RequestFields):
    """Which of the choices fits the input?"""

    type: Literal["choice"]
    instructions: DecisionContent
    choices: Annotated[list[ChoiceOption], Field(min_length=2, max_length=MAX_CHOICES)]
    name: str | None = None


class ScoreQuestion(RequestFields):
    """How does the input rate on an ordered scale?"""

    type: Literal["score"]
    instructions: DecisionContent
    levels: Annotated[list[ScoreLevel], Field(min_length=2, max_length=MAX_LEVELS)]
    name: str | None = None


Question = Annotated[
    Annotated[Predicate, Tag("<predicate>")]
    | Annotated[ChoiceQuestion, Tag("<choice>")]
    | Annotated[ScoreQuestion, Tag("<score>")],
    Discriminator(type_of),
]


class DecisionRequest(RequestFields):
    """The body of POST /v1/decisions."""

    model: ModelName = None
    input: Annotated[Text | DecisionItems, Discriminator(form_of)]
    questions: Annotated[
        list[Question], Field(min_length=1, max_length=MAX_QUESTIONS, fail_fast=True)
    ]

    # accepted without effect: the engine caches prefixes itself
    prompt_cache_key: Annotated[str, Field(max_length=512)] | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    safety_identifier: Annotated[str, Field(max_length=128)] | None = None


class PredicateAnswer(BaseModel):
    """The probability that the statement is true."""

    type: Literal["predicate"] = "predicate"
    name: str | None
    probability: float


class ChoiceProbability(BaseModel):
    """The probability of one choice; those of a question add up to 1."""

    value: str | bool
    probability: float


class ChoiceAnswer(BaseModel):
    """The likeliest choice, and its probability among all that the model could write."""

    type: Literal["choice"] = "choice"
    name: str | None
    choice: str | bool
    confidence: float
    probabilities: list[ChoiceProbability]


class ScoreProbability(BaseModel):
    """The probability of one level, whose value is its position."""

    value: int
    label: str
    probability: float


class ScoreAnswer(BaseModel):
    """The mean level, and the likeliest level's probability among all that the model could
    write.
    """

    type: Literal["score"] = "score"
    name: str | None
    score: float
    confidence: float
    probabilities: list[ScoreProbability]


class DecisionInputTokens(BaseModel):
    """Input tokens that the engine had in its cache. vLLM does not count what it writes there."""

    cached_tokens: int
    cache_write_tokens: int = 0


class DecisionOutputTokens(BaseModel):
    """A decision is one token, without reasoning."""

    reasoning_tokens: int = 0


class DecisionUsage(BaseModel):
    """Token counts of all questions; each has the input in its prompt."""

    input_tokens: int
    input_tokens_details: DecisionInputTokens
    output_tokens: int
    output_tokens_details: DecisionOutputTokens
    total_tokens: int


class Decision(BaseModel):
    """The answers, in the order of the questions."""

    model: str
    answers: list[
        Annotated[PredicateAnswer | ChoiceAnswer | ScoreAnswer, Field(discriminator="type")]
    ]
    usage: DecisionUsage
