"""Lets the engines of a model in this process sleep, and wakes them."""

from openai_frontend.errors import ModelUnavailable, caught, describe_exception
from openai_frontend.triton import inprocess


def is_sleeping(model_name: str) -> bool:
    """Whether an engine of one of the model's versions sleeps or falls asleep."""
    return any(each.is_sleeping for each in inprocess.current_handles(model_name))


async def sleep(model_name: str, level: int) -> int:
    """Let every awake engine of the model sleep; return the bytes that they have freed.

    Raises ModelUnavailable if an engine serves requests or fails to sleep.
    """
    freed = 0

    def report(error: Exception) -> None:
        reason = describe_exception(error)
        raise ModelUnavailable(f"The model '{model_name}' cannot sleep: {reason}") from error

    for handle in inprocess.current_handles(model_name):
        if not handle.is_sleeping:
            with caught(report):
                freed += await handle.sleep(level)
    return freed


async def wake(model_name: str) -> None:
    """Wake every sleeping engine of the model. Raises ModelUnavailable if one does not wake, which
    the supervisor of engines then restarts.
    """

    def report(error: Exception) -> None:
        reason = describe_exception(error)
        raise ModelUnavailable(f"The model '{model_name}' did not wake: {reason}") from error

    for handle in inprocess.current_handles(model_name):
        with caught(report):
            await handle.wake()


def failure(model_name: str) -> str | None:
    """Why an engine of the model cannot serve now; None if all can."""
    failures = (each.failure() for each in inprocess.current_handles(model_name))
    return next((reason for reason in failures if reason is not None), None)
