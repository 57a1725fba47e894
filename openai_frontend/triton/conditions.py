"""Why models cannot serve of which Triton says that they can: engines that hang or start again."""

from dataclasses import dataclass

from openai_frontend.errors import EngineRestarting, ModelFailed


@dataclass(frozen=True, slots=True)
class Condition:
    """What keeps a model from serving."""

    reason: str
    retry_after_s: float | None = None  # when it should serve again; None: nobody knows


class Conditions:
    """By model. Set and read on the event loop."""

    def __init__(self) -> None:
        self._of: dict[str, Condition] = {}

    def set(self, model_name: str, condition: Condition) -> None:
        """From now on requests to the model are refused."""
        self._of[model_name] = condition

    def clear(self, model_name: str) -> None:
        """The model may serve, as far as anybody knows."""
        self._of.pop(model_name, None)

    def reason(self, model_name: str) -> str | None:
        """Why the model cannot serve; None where nothing is known."""
        condition = self._of.get(model_name)
        return None if condition is None else condition.reason

    def check(self, model_name: str, *, called: str | None = None) -> None:
        """Raise ModelFailed or EngineRestarting where the model, `called` so, cannot serve."""
        condition = self._of.get(model_name)
        if condition is None:
            return
        if condition.retry_after_s is None:
            raise ModelFailed(called or model_name, condition.reason)
        raise EngineRestarting(
            called or model_name, condition.reason, retry_after_s=condition.retry_after_s
        )
