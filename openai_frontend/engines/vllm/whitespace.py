"""Bounds the whitespace of JSON answers, which vLLM's own grammars leave free. Never compiles."""

import json
from collections.abc import Mapping
from typing import Any


def is_free(config: Any) -> bool:
    """Whether an engine of this StructuredOutputsConfig lets models write any whitespace, and
    gives schemas to xgrammar, which can bound it.
    """
    return config.backend in ("auto", "xgrammar") and not config.disable_any_whitespace


def bounded(constraint: Any) -> Any:
    """Return a StructuredOutputsParams with one space at most between the parts of its JSON.

    Where whitespace is free, a model may write nothing else until its last token; where there is
    none, a model that was taught `{"a": 1}` writes keys and values that it never would. Of vLLM's
    forms only structural tags can tell xgrammar a bound.
    """
    from vllm.sampling_params import StructuredOutputsParams

    schema = _schema(constraint)
    if schema is None:
        return constraint
    form = {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": 1}
    tag = {"type": "structural_tag", "format": form}
    return StructuredOutputsParams(structural_tag=json.dumps(tag))


def _schema(constraint: Any) -> Any:
    """The JSON schema of the answer, where it is one that vLLM gives to xgrammar; else None."""
    from vllm.sampling_params import check_json_nesting
    from vllm.v1.structured_output.backend_xgrammar import has_xgrammar_unsupported_json_features

    if constraint.json_object:
        return {"type": "object"}
    check_json_nesting(constraint.json)  # before anything walks through it
    schema = _parsed(constraint.json) if isinstance(constraint.json, str) else constraint.json
    if not isinstance(schema, Mapping) or has_xgrammar_unsupported_json_features(schema):
        return None
    return schema


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None  # vLLM says what is wrong with it
