"""docs/conformance.md as text: the SDK's fields beside the tests that show what becomes of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import openai

from tests.conformance.endpoints import ENDPOINTS, Endpoint
from tests.conformance.request_fields import RequestField

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
WRITE = "make test ARGS=--write-conformance"
MARKS = {"honours": "honoured", "accepts": "accepted", "refuses": "refused"}

_HEAD = f"""# Conformance

Written by a run of all tests (`{WRITE}`), never by hand: every field
that the `openai` package {openai.__version__} can send to these endpoints, and what becomes of it.

- **honoured**: it does what OpenAI says.
- **accepted**: it is read and checked, and changes nothing about the answer.
- **refused**: it is a 400 that names it.

Where a field is both honoured and refused, that depends on its value or on the model; the tests
tell. A field without tests of its own shares the fate of the field that holds it, where that one is
accepted or refused as a whole.
"""

_DIFFERENCES = """\
## Differences from vLLM

Deliberate ones, compared with `vllm serve` 0.32:

- Errors: `code` is one of OpenAI's words ([errors.md](errors.md)), in vLLM the HTTP status. Values
  beyond OpenAI's ranges are a 400, such as `temperature` above 2.
- Fields that would change the answer and are not supported are a 400 that names them
  (`chat_template`, `prompt_embeds`, `logits_processors`, `kv_transfer_params`). So is
  `use_beam_search` on a vLLM model, and `length_penalty` other than 1 without it.
- `reasoning_effort` and `verbosity` are clamped to what the chat template supports, and the header
  `x-adjusted-parameters` says so. vLLM passes them on as they are.
- Reasoning is in `reasoning` and in `reasoning_content`; vLLM has the first alone.
- A malformed tool call is a tool call whose `arguments` are what the model wrote; vLLM makes it
  content. Malformed arguments of earlier messages become `{}` in both.
- With `tool_choice: "none"` the model is shown no tools, as with vLLM's
  `--exclude-tools-when-tool-choice-none`.
- The first chunk of a stream that may call tools has `content: null`, as OpenAI's; in vLLM it is an
  empty text.
- `--force-include-usage` adds the usage chunk alone; vLLM's `--enable-force-include-usage` also
  puts counts on every chunk. `continuous_usage_stats` does that in both, if `include_usage` is
  true.
- `/v1/chat/completions/render` and `/v1/completions/render` also answer the prompt's text and the
  number of its tokens ([chat-templates.md](chat-templates.md)). `sampling_params` leaves the
  model's own defaults out; vLLM's has those of `generation_config.json`.
- `finish_reason` is one of OpenAI's values. A stream that fails ends with an `error` event; vLLM
  also says `abort` and `error`.
"""


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """A mark on a test: what it shows of one field."""

    field: str
    status: str
    test: str


class Conformance:
    """What the claims of a run come to."""

    def __init__(self, claims: Iterable[Claim], endpoints: Sequence[Endpoint] = ENDPOINTS) -> None:
        self._endpoints = endpoints
        self._claims: dict[str, set[Claim]] = {}
        for claim in claims:
            self._claims.setdefault(claim.field, set()).add(claim)

    def unknown(self) -> list[str]:
        """The names in marks that are no field."""
        return sorted(
            set(self._claims) - {name for each in self._endpoints for name in _names(each)}
        )

    def gaps(self) -> list[str]:
        """The fields that no test tells anything of."""
        names = (name for each in self._endpoints for name in _names(each))
        return [name for name in names if not self._covering(name)]

    def page(self) -> str:
        """The whole page."""
        return "\n".join([_HEAD, _DIFFERENCES, *(self._section(each) for each in self._endpoints)])

    def _covering(self, field: str) -> str:
        """The field whose claims hold for this one: itself, or one around it; else nothing."""
        if field in self._claims:
            return field
        around = field.rpartition(".")[0]
        while around and around not in self._claims:
            around = around.rpartition(".")[0]
        statuses = {claim.status for claim in self._claims.get(around, ())}
        return "" if "honoured" in statuses else around

    def _section(self, endpoint: Endpoint) -> str:
        sdk = self._table(endpoint.prefix, endpoint.sdk_fields)
        own = self._table(endpoint.prefix, endpoint.own_fields)
        parts = [f"## {endpoint.title}", sdk]
        return "\n\n".join([*parts, "Fields that are not OpenAI's:", own] if own else parts) + "\n"

    def _table(self, prefix: str, fields: Sequence[RequestField]) -> str:
        rows = [self._row(prefix, field.name) for field in fields]
        return "\n".join(["| field | here | shown by |", "|---|---|---|", *rows]) if rows else ""

    def _row(self, prefix: str, field: str) -> str:
        name = f"{prefix}.{field}"
        covering = self._covering(name)
        claims = sorted(
            self._claims.get(covering, ()), key=lambda claim: (claim.status, claim.test)
        )
        statuses = list(dict.fromkeys(claim.status for claim in claims))
        if not statuses:
            return f"| `{field}` | **gap** | |"
        if covering != name:
            around = covering.removeprefix(f"{prefix}.")
            return f"| `{field}` | {', '.join(statuses)} | as `{around}` |"
        shown = [_shown(status, claims, alone=len(statuses) == 1) for status in statuses]
        return f"| `{field}` | {', '.join(statuses)} | {'<br>'.join(shown)} |"


def _names(endpoint: Endpoint) -> list[str]:
    fields = [*endpoint.sdk_fields, *endpoint.own_fields]
    return [f"{endpoint.prefix}.{field.name}" for field in fields]


def _shown(status: str, claims: Sequence[Claim], *, alone: bool) -> str:
    tests = [f"`{claim.test}`" for claim in claims if claim.status == status]
    return "<br>".join(tests if alone else [f"{status}:", *tests])
