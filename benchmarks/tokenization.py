"""What rendering and tokenizing a benchmark's chat costs by itself, in a process of its own."""

import sys
import time
from pathlib import Path

from benchmarks import process_stat
from benchmarks.request import messages
from openai_frontend.prompting import tokenizer
from openai_frontend.prompting.prompt import PromptBuilder

_MOST_WARM_UP = 50


def cpu_us_per_chat(folder: Path, prompt_bytes: int, chats: int) -> float:
    """CPU time of one chat prompt, made as the gateway makes it but without a thread in between."""
    builder = PromptBuilder(tokenizer.load(folder))
    chat = messages(prompt_bytes)
    for _ in range(min(chats, _MOST_WARM_UP)):
        builder.chat(chat)
    started_s = time.process_time()
    for _ in range(chats):
        builder.chat(chat)
    return (time.process_time() - started_s) / chats * 1e6


def main() -> None:
    """Arguments: the tokenizer's folder, bytes of the prompt (0: the usual one), how many chats,
    core or -1.
    """
    folder, prompt_bytes, chats, core = sys.argv[1:]
    process_stat.pin(int(core) if int(core) >= 0 else None)
    print(cpu_us_per_chat(Path(folder), int(prompt_bytes), int(chats)))


if __name__ == "__main__":
    main()
