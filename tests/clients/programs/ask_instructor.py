"""Asks a gateway through instructor, in each mode that it is given, and prints the objects."""

import json
import sys
from collections.abc import Iterable
from typing import Any, Literal

import instructor
import openai
from pydantic import BaseModel


class Person(BaseModel):
    name: Literal["Alice"]
    age: Literal[30]


def ask(url: str, mode: str) -> Any:
    """The object, or the error that instructor ended with."""
    plain = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    client = instructor.from_openai(plain, mode=instructor.Mode[mode])
    question = "Give me a JSON object with name Alice and age 30."
    try:
        person = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": question}],
            response_model=Iterable[Person] if mode == "PARALLEL_TOOLS" else Person,
            max_retries=0,
            temperature=0,
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, the test reads it
        return {"error": str(error)}
    if mode == "PARALLEL_TOOLS":
        return [each.model_dump() for each in person]
    return person.model_dump()


json.dump({mode: ask(sys.argv[1], mode) for mode in sys.argv[2:]}, sys.stdout)
