"""The markers of reasoning that several families share."""

from openai_frontend.parsing.family import Reasoning

# The model writes <think> itself, or the prompt ends with it.
THINK = Reasoning(start="<think>", end="</think>")
# The model goes on as if <think> had been written.
THINKING = Reasoning(start="<think>", end="</think>", starts_inside=True)
# The same, and the tokens around calls are not spoken of in thoughts.
THINK_UNTIL_CALLS = Reasoning(start="<think>", end="</think>", ended_by_calls=True)
THINKING_UNTIL_CALLS = Reasoning(
    start="<think>", end="</think>", starts_inside=True, ended_by_calls=True
)
