"""Sends requests through instructor in each given mode, and prints the objects."""

import json
import sys
from collections.abc import Iterable
from typing import Any, Literal

import instructor
import openai
from pydantic import BaseModel, Field


class Person(BaseModel):
    name: Literal["Alice"]
    age: Literal[30]


class get_weather(BaseModel):  # instructor calls the tool by its class name
    """Get the current weather in a city"""

    city: str = Field(description="The city")


PARALLEL = "PARALLEL_TOOLS"
PERSON = "Give me a JSON object with name Alice and age 30."
WEATHER = "What is the weather in Paris and London?"


def ask(url: str, mode: str) -> Any:
    """The object or objects, or instructor's final error."""
    plain = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    client = instructor.from_openai(plain, mode=instructor.Mode[mode])
    try:
        found = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": WEATHER if mode == PARALLEL else PERSON}],
            response_model=Iterable[get_weather] if mode == PARALLEL else Person,
            max_retries=0,
            temperature=0,
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, the test reads it
        return {"error": str(error)}
    if mode == PARALLEL:
        return [each.model_dump() for each in found]
    return found.model_dump()


json.dump({mode: ask(sys.argv[1], mode) for mode in sys.argv[2:]}, sys.stdout)
