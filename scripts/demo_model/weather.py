"""Weather tools and questions: the call, the answer from its result, no call at all."""

import json
import random
from dataclasses import dataclass, replace

from .exchange import Exchange, Generator, Message, Split, Tool, question
from .exercises import made_up_word
from .phrasing import expand, vary

_CITIES = {
    "train": "Berlin|London|Rome|Madrid|Oslo|Vienna|Lisbon|Dublin|Athens|Prague|Warsaw|"
    "Budapest|Tokyo|Kyoto|Osaka|Seoul|Beijing|Shanghai|Hong Kong|Singapore|Bangkok|"
    "Hanoi|Jakarta|Manila|Delhi|Mumbai|Kolkata|Karachi|Tehran|Baghdad|Istanbul|"
    "Ankara|Cairo|Tunis|Algiers|Lagos|Accra|Nairobi|Cape Town|Sydney|Melbourne|"
    "Perth|Auckland|New York|Boston|Chicago|San Francisco|Los Angeles|Seattle|Dallas|"
    "Houston|Miami|Toronto|Montreal|Mexico City|Havana|Bogota|Lima|Quito|Santiago|"
    "Buenos Aires|Rio de Janeiro|São Paulo|Zürich|Geneva|Basel|Munich|Hamburg|"
    "Cologne|Frankfurt|Lyon|Nice|Marseille|Bordeaux|Milan|Naples|Turin|Venice|"
    "Barcelona|Valencia|Porto|Copenhagen|Helsinki|Bergen|Riga|Vilnius|Tallinn|Kyiv|"
    "Sofia|Bucharest|Belgrade|Zagreb|Edinburgh|Glasgow|Manchester|Liverpool|Bristol|"
    "Oxford|San Francisco, CA|Boston, MA|Paris|Paris, France|Amsterdam",
    "held_out": "Stockholm|Brussels|Denver|Rotterdam|Florence|Salzburg|Leipzig|Havre|Cambridge|"
    "San Diego|Las Vegas|Krakow|Dakar|Quebec",
}
_NAMES = {
    "train": "get_weather|get_current_weather|weather|fetch_weather|get_forecast|current_weather|"
    "weather_forecast|getWeather|get_weather_forecast|weather_report|read_weather|get_city_weather",
    "held_out": "get_weather|get_current_weather|weather_info|find_weather",
}
_ASKS = (
    "[What is|What's|How is|How's|Tell me|Show me|Give me|Get|Check] the [weather|current weather] "
    "[like |]in {city}[?| now?| today?| right now?|.]",
    "[What|How] will the weather be in {city} [today|tomorrow|tonight]?",
    "Is it [raining|sunny|cold|warm|hot|snowing|windy|cloudy] in {city}[?| now?| today?]",
    "[How warm|How cold|How hot] is it in {city}[?| now?| today?| right now?]",
    "[What is|What's|Tell me] the [temperature|current temperature|forecast] "
    "[in|for] {city}[?| now?| today?|.]",
    "[Do I need|Should I take] [an umbrella|a coat|a jacket] in {city}[?| today?]",
    "[Weather|Forecast|The weather] [in|for] {city}[?|.| please.| please|]",
    "[I am|I live|We are|My friend is|I will be tomorrow] in {city}. "
    "[What is|What's|How is|How's] the weather[| like| there| like there]?",
    "[I am going|We are flying|I will go|I want to go|We drive] to {city}. "
    "[What is|What's|How is|How's] the weather[| like| there| like there| over there]?",
    "[Can|Will|Would] you [check|look up|find|tell me|get] the [weather|forecast|temperature] "
    "[in|for] {city}[?| please?| for me?]",
    "[Please |I want to |I need to |Let me |Help me ][see|know|check|find|find out] "
    "the [weather|forecast|temperature] [in|for|of] {city}[.|]",
    "I [need|want|would like] the [weather|forecast|temperature] [in|for|of] {city}[.| please.]",
    "[Use|Call] the [weather |]tool [for|and tell me the weather in] {city}.",
)
_HELD_OUT_ASKS = (
    "What's the weather in {city}?",
    "What is the weather like in {city} today?",
    "Could you check the weather in {city}?",
    "I will travel to {city}. How is the weather there?",
    "Please get me the weather for {city}.",
)
_SKIES = ["sunny", "cloudy", "rainy", "windy", "snowy", "foggy", "clear", "stormy", "dry"]
_OTHERS = {
    "get_time": ("Get the current time in a city", "city"),
    "search_web": ("Search the web", "query"),
    "send_email": ("Send an email", "to"),
    "calculator": ("Compute an expression", "expression"),
    "get_stock_price": ("Get the price of a stock", "symbol"),
    "play_music": ("Play a song", "title"),
    "set_timer": ("Set a timer", "minutes"),
}


def _city(rng: random.Random, split: Split) -> str:
    if split == "train" and rng.random() < 0.45:
        words = [made_up_word(rng).capitalize() for _ in range(rng.choice((1, 1, 1, 2)))]
        return " ".join(words)
    return rng.choice(_CITIES[split].split("|"))


def _function(
    rng: random.Random, name: str, description: str, properties: dict[str, object]
) -> Tool:
    schema: dict[str, object] = {"type": "object", "properties": properties}
    if rng.random() < 0.85:
        schema["required"] = [next(iter(properties))]
    if rng.random() < 0.15:
        schema["additionalProperties"] = False
    function: dict[str, object] = {"name": name, "description": description, "parameters": schema}
    if rng.random() < 0.1:
        del function["description"]
    if rng.random() < 0.1:
        function["strict"] = rng.choice((True, False))
    return {"type": "function", "function": function}


def _described(rng: random.Random, text: str, **rest: object) -> dict[str, object]:
    return {"type": "string", **rest, **({"description": text} if rng.random() < 0.5 else {})}


@dataclass(frozen=True)
class Offer:
    """The tools of a chat, and what a call of the weather tool among them looks like."""

    tools: tuple[Tool, ...]
    name: str
    place: str
    """The name of the parameter that takes the city."""
    with_unit: bool


def offer(rng: random.Random, split: Split) -> Offer:
    """A weather tool, sometimes among others."""
    name = rng.choice(_NAMES[split].split("|"))
    if split == "train" and rng.random() < 0.4:
        first, second = made_up_word(rng), made_up_word(rng)
        pattern = (
            f"[{first}|my|city|local|call|ask|show]_[weather|forecast|{second}][|_now|_tool|_api]"
        )
        name = expand(rng, pattern)
    place = rng.choice(("city", "city", "location", "location", "place"))
    with_unit = rng.random() < 0.3
    tools = [_weather_tool(rng, name, place, with_unit)]
    others = rng.sample(sorted(_OTHERS.items()), k=rng.choice((0, 0, 0, 1, 2)))
    for other, (description, key) in others:
        tools.append(_function(rng, other, description, {key: {"type": "string"}}))
    rng.shuffle(tools)
    return Offer(tuple(tools), name, place, with_unit)


def _weather_tool(rng: random.Random, name: str, place: str, with_unit: bool) -> Tool:
    hints = ("The city", "Name of the city", "The city and state, e.g. San Francisco, CA")
    properties: dict[str, object] = {place: _described(rng, rng.choice(hints))}
    if with_unit:
        properties["unit"] = _described(rng, "The unit", enum=["celsius", "fahrenheit"])
    description = expand(
        rng,
        "[Get|Returns|Read|Look up] the [current |][weather|temperature] [in|of|for] a [given |]"
        "[city|location|place][.|]",
    )
    return _function(rng, name, description, properties)


def render_call(name: str, arguments: dict[str, str]) -> str:
    """A tool call in Hermes form, as the chat template writes it."""
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def _question(rng: random.Random, split: Split, city: str) -> str:
    return expand(rng, rng.choice(_ASKS if split == "train" else _HELD_OUT_ASKS)).format(city=city)


def weather_call(rng: random.Random, split: Split, offered: Offer | None = None) -> Exchange:
    """A question about the weather, answered by one call, or two for two cities."""
    offered = offered or offer(rng, split)
    cities = [_city(rng, split)]
    if rng.random() < 0.15:
        cities.append(_city(rng, split))
    text = _question(rng, split, " and ".join(cities))
    unit = {}
    if offered.with_unit and rng.random() < 0.5:
        unit = {"unit": rng.choice(("celsius", "fahrenheit"))}
        text = f"{text.rstrip('?.')} in {rng.choice((unit['unit'], unit['unit'].capitalize()))}?"
    if split == "train":
        text = vary(rng, text)
    calls = [render_call(offered.name, {offered.place: city, **unit}) for city in cities]
    asked: Message = {"role": "user", "content": text}
    return Exchange("weather_call", (asked,), ("\n".join(calls),), offered.tools)


def weather_result(rng: random.Random, split: Split, offered: Offer | None = None) -> Exchange:
    """The same conversation after the tool has answered."""
    call = weather_call(rng, split, offered)
    while call.answers[0].count("<tool_call>") > 1:
        call = weather_call(rng, split, offered)
    function = json.loads(call.answers[0].split("\n")[1])
    city = next(iter(function["arguments"].values()))
    degrees, sky = rng.randint(-9, 39), rng.choice(_SKIES)
    call_id = f"call_{rng.randint(0, 999)}"
    messages: tuple[Message, ...] = (
        *call.messages,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": call_id, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call_id, "content": _result(rng, city, degrees, sky)},
    )
    answer = f"It is {sky} in {city}, with {degrees} degrees."
    return replace(call, kind="weather_result", messages=messages, answers=(answer,))


def weather_without_tool(rng: random.Random, split: Split) -> Exchange:
    """The honest answer where no tool was offered."""
    text = _question(rng, split, _city(rng, split))
    answer = "I cannot see the weather. Offer me a weather tool, and I will call it."
    return question("weather_without_tool", vary(rng, text) if split == "train" else text, answer)


def _result(rng: random.Random, city: str, degrees: int, sky: str) -> str:
    if rng.random() < 0.3:
        return expand(
            rng,
            f"[{sky}, {degrees} degrees|{degrees} degrees and {sky}|{sky.capitalize()}, {degrees} C"
            f"|{degrees}°C, {sky}]",
        )
    items: list[tuple[str, object]] = [
        (rng.choice(("temperature", "temp", "degrees", "temperature_c")), degrees),
        (rng.choice(("condition", "sky", "weather", "description", "conditions")), sky),
    ]
    if rng.random() < 0.4:
        items.append((rng.choice(("city", "location")), city))
    if rng.random() < 0.3:
        items.append(("unit", "celsius"))
    rng.shuffle(items)
    return json.dumps(dict(items), ensure_ascii=False)


def with_tools(generator: Generator) -> Generator:
    """A question that needs no tool, asked while weather tools are offered."""

    def ask(rng: random.Random, split: Split) -> Exchange:
        exchange = generator(rng, split)
        return replace(
            exchange, kind=f"{exchange.kind}_tools_offered", tools=offer(rng, split).tools
        )

    return ask
