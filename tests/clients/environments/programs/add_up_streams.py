"""Runs each case with each client, whole and streamed, and prints what the client has added up."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import agents
import anthropic
import openai
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

Case = dict[str, Any]
URL, CASES = sys.argv[1], json.loads(sys.argv[2])
RESULTS = {"weather": "sunny", "now": "noon"}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        "additionalProperties": False}  # fmt: skip
STEPS = 3  # at most, so that a client without an end is an error
METADATA = ("status", "incomplete_details", "stop_reason", "stop_sequence", "model_name")
KEY: Case = {"base_url": f"{URL}/v1", "api_key": "none", "max_retries": 0}


def asked(case: Case) -> str:
    return str(case["prompt"])


class OpenAI:
    """OpenAI's SDK: `responses.create` beside `responses.stream`."""

    def run(self, case: Case, *, stream: bool) -> Iterator[Any]:
        with openai.OpenAI(**KEY) as client:
            items: list[Any] = [{"role": "user", "content": asked(case)}]
            for _ in range(STEPS):
                response = self._answer(client, case, items, stream=stream)
                yield response.model_dump()
                calls = [each for each in response.output if each.type == "function_call"]
                if not calls or not case.get("loop"):
                    return
                items += [each.model_dump(exclude={"parsed_arguments"}) for each in response.output]
                items += [{"type": "function_call_output", "call_id": each.call_id,
                           "output": RESULTS[each.name]} for each in calls]  # fmt: skip

    def _answer(self, client: Any, case: Case, items: Any, *, stream: bool) -> Any:
        fields: Case = {"model": case["model"], "input": items}
        if case.get("tools"):
            fields["tools"] = [
                {"type": "function", "name": name, "parameters": CITY, "strict": False}
                for name in RESULTS
            ]
        if case.get("schema"):
            form = {"type": "json_schema", "name": "city", "schema": CITY}
            fields["text"] = {"format": form}
        if "max_tokens" in case:
            fields["max_output_tokens"] = case["max_tokens"]
        if not stream:
            return client.responses.create(**fields)
        with client.responses.stream(**fields) as events:
            last = [*events][-1]  # `get_final_response` knows only `response.completed`
        return last.response


class Anthropic:
    """Anthropic's SDK: `messages.create` beside `messages.stream`."""

    def run(self, case: Case, *, stream: bool) -> Iterator[Any]:
        with anthropic.Anthropic(**KEY | {"base_url": URL}) as client:
            turns: list[Any] = [{"role": "user", "content": asked(case)}]
            for _ in range(STEPS):
                message = self._answer(client, case, turns, stream=stream)
                yield message.model_dump()
                calls = [each for each in message.content if each.type == "tool_use"]
                if not calls or not case.get("loop"):
                    return
                turns.append({"role": "assistant", "content": message.content})
                turns.append({"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": each.id, "content": RESULTS[each.name]}
                    for each in calls]})  # fmt: skip

    def _answer(self, client: Any, case: Case, turns: Any, *, stream: bool) -> Any:
        fields: Case = {"model": case["model"], "messages": turns}
        fields["max_tokens"] = case.get("max_tokens", 500)
        if case.get("tools"):
            fields["tools"] = [{"name": name, "input_schema": CITY} for name in RESULTS]
        if case.get("schema"):
            fields["output_config"] = {"format": {"type": "json_schema", "schema": CITY}}
        if not stream:
            return client.messages.create(**fields)
        with client.messages.stream(**fields) as events:
            return events.get_final_message()


class LangChain:
    """LangChain's chat models: `invoke` beside the sum of the chunks of `stream`."""

    def __init__(self, model: Callable[[Case], Any]) -> None:
        self._model = model

    def run(self, case: Case, *, stream: bool) -> Iterator[Any]:
        model = self._model(case)
        if case.get("tools"):
            model = model.bind_tools(
                [{"name": name, "description": "d", "input_schema": CITY} for name in RESULTS]
                if isinstance(model, ChatAnthropic)
                else [{"type": "function", "name": name, "parameters": CITY} for name in RESULTS]
            )
        messages: list[BaseMessage] = [HumanMessage(asked(case))]
        for _ in range(STEPS):
            answer = _summed(model, messages) if stream else model.invoke(messages)
            metadata = answer.response_metadata
            yield {
                "text": answer.text,
                "parts": [*_parts(answer.content)],
                "tool_calls": answer.tool_calls,
                "usage": answer.usage_metadata,
                "metadata": {name: metadata.get(name) for name in METADATA},
            }
            if not answer.tool_calls or not case.get("loop"):
                return
            messages.append(answer)
            messages += [
                ToolMessage(RESULTS[each["name"]], tool_call_id=each["id"])
                for each in answer.tool_calls
            ]


def _parts(content: Any) -> Iterator[tuple[str, Any]]:
    """The parts without members that LangChain keeps of one of the two forms alone."""
    for part in [content] if isinstance(content, str) else content:
        if isinstance(part, str):
            if part:
                yield "text", part
        elif part["type"] == "reasoning":
            yield "reasoning", [each["text"] for each in part["summary"]]
        else:
            yield part["type"], part.get("text", part.get("thinking"))


def _summed(model: Any, messages: Sequence[BaseMessage]) -> Any:
    total: Any = None
    for chunk in model.stream(messages):
        total = chunk if total is None else total + chunk
    return total


def responses_model(case: Case) -> Any:
    fields: Case = {}
    if case.get("schema"):
        form = {"type": "json_schema", "name": "city", "schema": CITY}
        fields["model_kwargs"] = {"text": {"format": form}}
    if "max_tokens" in case:
        fields["max_tokens"] = case["max_tokens"]
    return ChatOpenAI(
        model=case["model"],
        use_responses_api=True,
        reasoning={"summary": "auto"},  # LangChain does not add up any other reasoning
        output_version="responses/v1",
        **KEY,
        **fields,
    )


def messages_model(case: Case) -> Any:
    fields: Case = {"max_tokens": case.get("max_tokens", 500)}
    if case.get("schema"):
        form = {"format": {"type": "json_schema", "schema": CITY}}
        fields["model_kwargs"] = {"output_config": form}
    return ChatAnthropic(model=case["model"], **KEY | {"base_url": URL}, **fields)


class Agents:
    """openai-agents: `Runner.run` beside `Runner.run_streamed`, without stored state."""

    def run(self, case: Case, *, stream: bool) -> Iterator[Any]:
        yield asyncio.run(self._run(case, stream=stream))

    async def _run(self, case: Case, *, stream: bool) -> Any:
        async with openai.AsyncOpenAI(**KEY) as client:
            agent = self._agent(case, client)
            if not stream:
                result: Any = await agents.Runner.run(agent, asked(case), max_turns=STEPS)
            else:
                result = agents.Runner.run_streamed(agent, asked(case), max_turns=STEPS)
                async for _ in result.stream_events():
                    pass
        usage = result.context_wrapper.usage
        return {
            "items": [_plain(each.raw_item) for each in result.new_items],
            "final": result.final_output,
            "usage": [usage.input_tokens, usage.output_tokens, usage.requests],
        }

    def _agent(self, case: Case, client: openai.AsyncOpenAI) -> Any:
        settings = agents.ModelSettings(store=False, max_tokens=case.get("max_tokens"))
        if case.get("schema"):
            form = {"type": "json_schema", "name": "city", "schema": CITY}
            settings.extra_body = {"text": {"format": form}}
        tools = [
            agents.FunctionTool(
                name=name,
                description="d",
                params_json_schema=CITY,
                on_invoke_tool=_invoked,
                strict_json_schema=False,
            )
            for name in RESULTS
        ]
        return agents.Agent(
            name="a",
            model=agents.OpenAIResponsesModel(model=case["model"], openai_client=client),
            model_settings=settings,
            tools=tools if case.get("tools") else [],
            tool_use_behavior="run_llm_again" if case.get("loop") else "stop_on_first_tool",
        )


async def _invoked(context: Any, arguments: str) -> str:
    return RESULTS[context.tool_name]


def _plain(item: Any) -> Any:
    return item if isinstance(item, dict) else item.model_dump()


CLIENTS: dict[str, Any] = {
    "openai": OpenAI(),
    "anthropic": Anthropic(),
    "openai-agents": Agents(),
    "langchain-openai": LangChain(responses_model),
    "langchain-anthropic": LangChain(messages_model),
}


def outcome(client: Any, case: Case, *, stream: bool) -> Any:
    """The answers of all turns, or the error that the client raises."""
    try:
        return [*client.run(case, stream=stream)]
    except (openai.APIError, anthropic.APIError, agents.AgentsException) as error:
        return {"error": str(error)}


agents.set_tracing_disabled(True)
found = {
    name: {
        case["name"]: [outcome(client, case, stream=stream) for stream in (False, True)]
        for case in CASES
    }
    for name, client in CLIENTS.items()
}
json.dump(found, sys.stdout, default=str)
