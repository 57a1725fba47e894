"""Request fields, and their values as the engine gets them."""

import json
from typing import Any

SCHEMA = {"type": "object"}
JSON_SCHEMA = {"name": "n", "description": "d", "schema": SCHEMA, "strict": True}
TAG = {"type": "structural_tag", "structures": [{"begin": "<", "schema": {}, "end": ">"}],
       "triggers": ["<"]}  # fmt: skip
FORMAT = {"type": "structural_tag", "format": {"type": "any_text"}}
GRAMMAR = 'root ::= "a"'
PLUG_IN = {"logits_processor": "x"}
REPETITION = {"max_pattern_size": 4, "min_pattern_size": 1, "min_count": 3}

# request field -> the engine's parameter, if it differs
SAMPLING: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
    ({"temperature": 0.0}, None),
    ({"top_p": 0.5}, None),
    ({"top_k": 5}, None),
    ({"min_p": 0.1}, None),
    ({"min_tokens": 2}, None),
    ({"presence_penalty": 1.0}, None),
    ({"frequency_penalty": -1.0}, None),
    ({"repetition_penalty": 1.5}, None),
    ({"seed": -1}, None),
    ({"stop": ["a", "b"]}, None),
    ({"stop": "a"}, {"stop": ["a"]}),
    ({"stop_token_ids": [97]}, None),
    ({"ignore_eos": True}, None),
    ({"include_stop_str_in_output": True}, None),
    ({"bad_words": ["a"]}, None),
    ({"allowed_token_ids": [97]}, None),
    ({"logit_bias": {"97": -100}}, {"logit_bias": {97: -100}}),
    ({"skip_special_tokens": False}, None),
    ({"spaces_between_special_tokens": False}, None),
    ({"thinking_token_budget": 0}, None),
    ({"max_tokens": 9}, None),
    ({"repetition_detection": REPETITION}, None),
    ({"vllm_xargs": PLUG_IN}, {"extra_args": PLUG_IN}),
    ({"prompt_logprobs": 2}, None),
]
REQUEST: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
    ({"priority": 3}, {"priority": 3}),
    ({"cache_salt": "s"}, {"cache_salt": "s"}),
    ({"return_token_ids": True}, {"return_token_ids": True}),
]

# fields, their StructuredOutputs, and the names of the fields
CONSTRAINTS: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    (
        {"response_format": {"type": "json_schema", "json_schema": JSON_SCHEMA}},
        {"json": SCHEMA},
        ["response_format", "response_format.json_schema", "response_format.json_schema.schema"],
    ),
    (
        {"response_format": {"type": "json_object"}},
        {"json_object": True},
        ["response_format.json_object"],
    ),
    (
        {"response_format": TAG},
        {"structural_tag": json.dumps(TAG, separators=(",", ":"))},
        ["response_format.structural_tag", "response_format.structural_tag.structures",
         "response_format.structural_tag.triggers"],
    ),
    (
        {"response_format": FORMAT},
        {"structural_tag": json.dumps(FORMAT, separators=(",", ":"))},
        ["response_format.structural_tag", "response_format.structural_tag.format"],
    ),
    *(
        ({"structured_outputs": {name: value}}, {name: value},
         ["structured_outputs", f"structured_outputs.{name}"])
        for name, value in {
            "json": SCHEMA, "regex": "a+", "choice": ["a", "b"], "grammar": GRAMMAR,
            "json_object": True, "structural_tag": "{}",
        }.items()
    ),
    *(
        ({name: value}, {kind: value}, [name])
        for name, kind, value in [
            ("guided_json", "json", SCHEMA), ("guided_regex", "regex", "a+"),
            ("guided_choice", "choice", ["a", "b"]), ("guided_grammar", "grammar", GRAMMAR),
            ("regex", "regex", "a+"), ("ebnf", "grammar", GRAMMAR),
        ]
    ),
    (
        {"guided_json": SCHEMA, "guided_whitespace_pattern": " "},
        {"json": SCHEMA, "whitespace_pattern": " "},
        ["guided_whitespace_pattern"],
    ),
    *(
        ({"structured_outputs": {"json": SCHEMA, name: value}}, {"json": SCHEMA, name: value},
         [f"structured_outputs.{name}"])
        for name, value in {"disable_any_whitespace": True, "whitespace_pattern": " "}.items()
    ),
]  # fmt: skip
