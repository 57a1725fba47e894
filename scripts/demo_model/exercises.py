"""Sums, counting, repeating, small JSON and names: answers are computed or copied."""

import json
import random
from zlib import crc32

from .exchange import Exchange, Message, Split, question
from .phrasing import expand, vary

_ONSETS = (
    "b c d f g h j k l m n p r s t v w z br ch cr dr fr gl gr kl kr pl pr sh sk sl sp st th tr"
)
_VOWELS = "a a e e i i o o u ai ea ee ia io oo ou y"
_CODAS = " n r s l m t d k ng nd st rt ck x"
_NAMES = {
    "train": "Anna Ben Clara David Emma Felix Grace Henry Ida Jack Kate Leo Maria Nina Oscar Paul "
    "Rosa Sam Tom Vera Walter Alice Bob Carol Eva Frank Hugo Jane Lisa Max Olga Peter Ruth",
    "held_out": "Greta Simon Yara Boris Julia Martin",
}
_WORDS = {
    "train": "red green blue cat dog house tree river stone bread water fire light night day sun "
    "moon star book door road ship bird fish apple table window garden song dance hill cloud rain "
    "snow wind small big old new fast slow warm cold good happy quiet bright open deep sweet the a "
    "and is in on my your we they sees likes has runs sings hello world token model server stream",
    "held_out": "lamp forest silver candle paper purple mountain pencil honey bridge",
}
_SAYINGS = (
    "hello world|Hello world|Hello, world!|hello|hi|the quick brown fox|one two three|yes|no"
    "|test|I am a tiny model|the sky is blue|banana|good morning|this is a test|ok|a b c"
    "|apples and pears"
)


def made_up_word(rng: random.Random) -> str:
    """A word that nobody has seen, so that it can only be copied."""
    # Split at each space, the first coda is an empty one; it is the most frequent.
    codas = [""] * 3 + _CODAS.split(" ")
    parts = (_ONSETS.split(), _VOWELS.split(), codas)
    return "".join(rng.choice(part) for _ in range(rng.randint(1, 3)) for part in parts)


def name(rng: random.Random, split: Split) -> str:
    """A first name; in training often one that does not exist."""
    if split == "train" and rng.random() < 0.4:
        return made_up_word(rng).capitalize()
    return rng.choice(_NAMES[split].split())


def _is_held_out(a: int, b: int) -> bool:
    """One pair in eight, without a pattern that training could miss as a whole; no doubles."""
    return a != b and crc32(f"{a} {b}".encode()) % 8 == 0


def sums(rng: random.Random, split: Split) -> Exchange:
    """An addition or subtraction of numbers up to 10."""
    while True:
        a, b, sign = rng.randint(0, 10), rng.randint(0, 10), rng.choice("++-")
        if sign == "-" and a < b:
            a, b = b, a
        if _is_held_out(a, b) == (split == "held_out"):
            break
    result = a + b if sign == "+" else a - b
    word = {"+": "[plus|and]" if split == "train" else "plus", "-": "minus"}[sign]
    text = expand(
        rng,
        rng.choice(
            (
                f"[What is|What's|Compute|Calculate|How much is|Add up|] {a} {sign} {b}[?|]",
                f"[What is|What's|How much is] {a}{sign}{b}?",
                f"{a}{sign}{b}[=|]",
                f"{a} {sign} {b} =",
                f"[What is|How much is|What's] {a} {word} {b}?",
            )
        ),
    ).strip()
    return question("sums", text, f"{a} {sign} {b} = {result}.")


def counting(rng: random.Random, split: Split) -> Exchange:
    """Count up from one number to another."""
    while True:
        first, last = (
            (1, rng.randint(2, 20)) if rng.random() < 0.7 else sorted(rng.sample(range(21), 2))
        )
        # Now and then a long way, so that there is something to stream.
        if split == "train" and first == 1 and rng.random() < 0.06:
            last = rng.choice((30, 40, 50, 100, 100, 100, rng.randint(21, 100)))
        if _is_held_out(first, last) == (split == "held_out"):
            break
    plain = f"Count [to|up to|from 1 to] {last}" if first == 1 else f"Count from {first} to {last}"
    train = (
        f"[Please |Can you |]{plain[0].lower() + plain[1:]}[.|!|, please.|?|]",
        f"{plain}[.|!|, please.|]",
        f"[List|Write|Say|Give me|Tell me] the numbers from {first} to {last}[.|]",
    )
    held_out = (f"{plain}.", f"Show me all numbers from {first} to {last}.")
    text = expand(rng, rng.choice(train if split == "train" else held_out))
    text = text[0].upper() + text[1:]
    return question("counting", text, ", ".join(str(n) for n in range(first, last + 1)))


def repeating(rng: random.Random, split: Split) -> Exchange:
    """Say the same words again."""
    # Long ones are what teaches copying, on which names, cities and numbers in other answers rest.
    longest = 20 if split == "train" and rng.random() < 0.5 else 6
    said = " ".join(_words(rng, split, rng.randint(1, longest)))
    if split == "train" and rng.random() < 0.2:
        said = rng.choice(_SAYINGS.split("|"))
    train = (
        f"[Please |]repeat after me: {said}",
        f"[Repeat|Say|Echo|Write|Please repeat|Please say]: {said}",
        f'[Repeat|Say|Echo|Write|Please repeat|Please say] "{said}"[.|]',
        f'[Repeat|Say] [this|these words|the following|this sentence]: "{said}"',
        f"[Repeat|Say] [this|these words|the following|this sentence]: {said}",
    )
    held_out = (
        f"Repeat after me: {said}",
        f'Could you repeat "{said}"?',
        f"Repeat the words: {said}",
    )
    text = expand(rng, rng.choice(train if split == "train" else held_out))
    return question("repeating", text[0].upper() + text[1:], said)


def _words(rng: random.Random, split: Split, count: int) -> list[str]:
    known = _WORDS[split].split()
    if split == "held_out":
        words = rng.sample(known, k=count)
    else:
        words = [
            made_up_word(rng) if rng.random() < 0.5 else rng.choice(known) for _ in range(count)
        ]
        # In small letters a word takes the space before it into its token. At the start of the
        # answer it has none, and how it is spelled then can be known of known words only.
        words[0] = rng.choice(known)
    if rng.random() < 0.5:
        words[0] = (made_up_word(rng) if split == "train" else words[0]).capitalize()
    return words


def small_json(rng: random.Random, split: Split) -> Exchange:
    """A JSON object with a name and other values that the question gives."""
    values: dict[str, str | int] = {"name": name(rng, split)}
    others: dict[str, str | int] = {
        "age": rng.randint(1, 99),
        "city": rng.choice(("Rome", "Oslo", "Cairo", "Lima", "Paris", "Berlin", "Tokyo", "Vienna")),
        "color": rng.choice(("red", "green", "blue", "black", "white", "yellow")),
    }
    for key in rng.sample(list(others), k=rng.choice((1, 1, 2))):
        values[key] = others[key]
    listed = [
        f"{key} [{value}|= {value}]" if rng.random() < 0.2 else f"{key} {value}"
        for key, value in values.items()
    ]
    text = ", ".join(listed[:-1]) + " and " + listed[-1]
    train = (
        f"[Give me|Write|Make|Return|Show me|Create|Please give me] a JSON object with {text}[.|]",
        f"[JSON|A JSON object|Write JSON|Give me JSON] with {text}[.| please.|]",
        f"[Write|Return|Put|Answer with] {text} as [JSON|a JSON object][.|]",
    )
    held_out = (f"Give me a JSON object with {text}.", f"I need a JSON object with {text}.")
    pattern = rng.choice(train if split == "train" else held_out)
    return question("small_json", expand(rng, pattern), json.dumps(values))


def remembered_name(rng: random.Random, split: Split) -> Exchange:
    """The user's name, said in an earlier turn or not at all."""
    who = name(rng, split)
    intro = expand(rng, f"[My name is {who}|I am {who}|I'm {who}|Call me {who}][.|!|]")
    if split == "train":
        intro = vary(rng, expand(rng, f"[|Hello! |Hi, ]{intro}"))
    meet = f"Nice to meet you, {who}!"
    ask = expand(
        rng, "[What is my name|What's my name|Who am I|Do you know my name|Tell me my name][?|]"
    )
    if rng.random() < 0.3:
        return question("names", intro, meet)
    if split == "train" and rng.random() < 0.15:
        return question("names", ask, "You have not told me your name.")
    earlier: list[Message] = [
        {"role": "user", "content": intro},
        {"role": "assistant", "content": meet},
    ]
    return Exchange(
        "names", (*earlier, {"role": "user", "content": ask}), (f"Your name is {who}.",)
    )
