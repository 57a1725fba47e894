"""The training text: reproducible, well formed, and without held-out questions."""

import random

from scripts.demo_model import corpus, topics
from scripts.demo_model.prompts import GENERATED, generate, read_prompts


def asked(documents: int) -> set[str]:
    """All user messages in that many documents."""
    chats = [d for d in corpus.documents(1, documents) if isinstance(d, corpus.Chat)]
    return {m["content"] for chat in chats for m in chat.messages if m["role"] == "user"}


def test_seed_reproduces_the_text():
    """Two runs with one seed give equal documents."""
    assert list(corpus.documents(7, 200)) == list(corpus.documents(7, 200))


def test_another_seed_gives_another_text():
    assert list(corpus.documents(7, 20)) != list(corpus.documents(8, 20))


def test_patterns_are_expanded():
    """No bracket or fragment of the phrasing grammar remains in a question."""
    questions = "".join(asked(2_000))

    assert {c for c in "[]{}" if c in questions} == set()
    assert "<server>" not in questions


def test_held_out_questions_are_never_trained_on():
    """The training text has no held-out question, except names asked back."""
    held_out = [e for e in read_prompts("held_out") if e.kind != "names"]
    last = {e.messages[-1]["content"] for e in held_out if e.messages[-1]["role"] == "user"}

    assert last & asked(5_000) == set()


def test_prompts_file_is_current():
    """`python -m scripts.demo_model.prompts` would change nothing."""
    for name, split in GENERATED.items():
        made = [tuple(prompt["messages"]) for prompt in generate(split)]
        assert made == [exchange.messages for exchange in read_prompts(name)]


def test_every_topic_occurs():
    """The training text has each answer in the tables of project facts."""
    rng = random.Random(1)
    answers = {topics.project(rng, "train").answers for _ in range(2000)}

    assert len(answers) == len(topics.topic_names("project"))
