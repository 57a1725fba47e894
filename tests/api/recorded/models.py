"""The models whose answers are recorded: mock engines, so that every answer is always the same."""

from pathlib import Path

from tests import mock_models
from tests.api.routers import test_tools

CALL = test_tools.tool_call("get_weather", city="Paris", days=2)
REASONING = "<think>\nIt is a greeting.\n</think>\n\nHello."
SAID = {
    "caller": ("hermes", CALL),
    "two-calls": ("hermes", f"One moment. {CALL}\n{test_tools.tool_call('now')}"),
    "custom": ("hermes", test_tools.tool_call("code", input='print("a")\n')),
    "thinks": ("qwen3", REASONING),
    "thinks-and-calls": ("qwen3", f"<think>\nhm\n</think>\n\n{CALL}"),
    "harmony": ("gpt_oss", test_tools.output("gpt_oss")["text"]),
}


def write(repository: Path) -> None:
    """`talks` answers five tokens, one of them not ASCII; `fails` fails after three tokens."""
    tokens = [" one", " two", " thr\u00e9e", ' "four"', "\n"]
    mock_models.write_with_tokenizer(repository, "talks", tokens=tokens, answer_tokens=5)
    mock_models.write_with_tokenizer(repository, "fails", fail_after_tokens=3)
    mock_models.write_with_tokenizer(repository, "fails-at-once", fail_after_tokens=0)
    mock_models.write_with_tokenizer(repository, "embeds", tasks=["embed"])
    mock_models.write_with_tokenizer(repository, "scores", tasks=["score"])
    mock_models.write_with_media(repository, "sees")
    mock_models.write_with_tokenizer(
        repository, "hears", audio_window_s=4, tokens=[" word"], answer_tokens=2
    )
    mock_models.write_with_tokenizer(repository, "broken", fail_at_load="no weights")
    for name, (family, text) in SAID.items():
        test_tools.write(repository, name, family, text)
