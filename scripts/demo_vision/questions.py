"""Questions about pictures with their answers, and chats of several of them."""

import random
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from scripts.demo_model.exchange import Message, Split
from scripts.demo_model.phrasing import expand

from .pictures import CELLS, Scene, Shape, draw_scene

# Kind, scene, message with one picture, answer
ScoredQuestion = tuple[str, Scene, Message, str]
# A question and its answer; None if the scene has no such question.
Question = tuple[str, str] | None


def _shapes(scene: Scene) -> list[Shape]:
    return [shape for shape in scene if shape is not None]


def _with_article(shape: Shape) -> str:
    article = "an" if shape.colour[0] in "aeiou" else "a"
    return f"{article} {shape.colour} {shape.kind}"


def listed(scene: Scene) -> str:
    """The shapes of a scene: "a red circle, a blue star and a green square"."""
    *first, last = map(_with_article, _shapes(scene))
    return f"{', '.join(first)} and {last}" if first else last


def _colour(rng: random.Random, scene: Scene) -> Question:
    counts = Counter(shape.kind for shape in _shapes(scene))
    single = [shape for shape in _shapes(scene) if counts[shape.kind] == 1]
    if not single:
        return None
    shape = rng.choice(single)
    text = expand(rng, f"[What colour is|What color is|Which colour has] the {shape.kind}?")
    return text, f"The {shape.kind} is {shape.colour}."


def _shape(rng: random.Random, scene: Scene) -> Question:
    counts = Counter(shape.colour for shape in _shapes(scene))
    single = [shape for shape in _shapes(scene) if counts[shape.colour] == 1]
    if not single:
        return None
    shape = rng.choice(single)
    text = expand(rng, f"[Which|What] shape is {shape.colour}?")
    return text, f"The {shape.kind} is {shape.colour}."


def _count(rng: random.Random, scene: Scene) -> Question:
    text = expand(
        rng, "[How many shapes are there|How many shapes do you see|Count the shapes][?| here?]"
    )
    count = len(_shapes(scene))
    return text, "There is 1 shape." if count == 1 else f"There are {count} shapes."


def _description(rng: random.Random, scene: Scene) -> Question:
    text = expand(
        rng,
        "[Describe [the|this] [picture|image].|What is in [the|this] [picture|image]?"
        "|What do you see[?| in this picture?| here?]|What's in this image?]",
    )
    return text, f"I see {listed(scene)}."


KINDS: dict[str, Callable[[random.Random, Scene], Question]] = {
    "colour": _colour,
    "count": _count,
    "shape": _shape,
    "description": _description,
}


@dataclass(frozen=True)
class PictureChat:
    """A conversation, and the scenes of its pictures in their order."""

    messages: tuple[Message, ...]
    scenes: tuple[Scene, ...]


def ask(rng: random.Random, question: str, pictures: int) -> Message:
    """A user's message with pictures before or after the question."""
    images = [{"type": "image"}] * pictures
    text = [{"type": "text", "text": question}]
    content = images + text if rng.random() < 0.6 else text + images
    return {"role": "user", "content": content if pictures else question}


def chat(rng: random.Random, split: Split = "train") -> PictureChat:
    """Questions about one picture, about one picture after another, or about two at once."""
    style = rng.random()
    if style < 0.12:
        return _two_pictures(rng, split)
    if style < 0.22:
        chats = [_about(rng, draw_scene(rng, split), 1) for _ in range(2)]
        return PictureChat(
            sum((each.messages for each in chats), ()), sum((each.scenes for each in chats), ())
        )
    return _about(rng, draw_scene(rng, split), 3)


def _about(rng: random.Random, scene: Scene, count: int) -> PictureChat:
    messages: list[Message] = []
    for kind in rng.sample(list(KINDS), k=len(KINDS)):
        if (found := KINDS[kind](rng, scene)) is not None and len(messages) < 2 * count:
            messages.append(ask(rng, found[0], 0 if messages else 1))
            messages.append({"role": "assistant", "content": found[1]})
    return PictureChat(tuple(messages), (scene,))


def _two_pictures(rng: random.Random, split: Split) -> PictureChat:
    first, second = draw_scene(rng, split, 2), draw_scene(rng, split, 2)
    question = expand(rng, "[Describe|What is in] [both|the two|these] [pictures|images].")
    answer = f"First {listed(first)}, then {listed(second)}."
    return PictureChat(
        (ask(rng, question, 2), {"role": "assistant", "content": answer}), (first, second)
    )


def scored_questions(
    seed: int,
    split: Split,
    of_each: int,
    *,
    kinds: Collection[str] = tuple(KINDS),
    most: int = CELLS,
) -> list[ScoredQuestion]:
    """Questions to score a model with, `of_each` of each kind, about up to `most` shapes."""
    rng = random.Random(f"{seed} {split}")
    found = []
    for kind in kinds:
        count = 0
        while count < of_each:
            scene = draw_scene(rng, split, most)
            if (question := KINDS[kind](rng, scene)) is not None:
                found.append((kind, scene, ask(rng, question[0], 1), question[1]))
                count += 1
    return found
