"""What requests hold of a budget is given back once, and not before Triton has released it."""

import pytest

from openai_frontend.admission.deferred_release import DeferredRelease
from openai_frontend.admission.memory_budget import MemoryBudget, RequestMemory
from openai_frontend.errors import ServerOverloaded


def test_budget_refuses_what_is_too_much_and_names_its_setting():
    budget = MemoryBudget(10, what="samples", setting="max-samples")
    RequestMemory(budget).take(10)

    with pytest.raises(ServerOverloaded, match=r"samples .* 10 bytes \(--max-samples\)"):
        RequestMemory(budget).take(1)
    assert budget.used_bytes == 10


def test_release_gives_back_the_rest_once():
    budget = MemoryBudget(10)
    memory = RequestMemory(budget)
    memory.take(10)
    memory.give_back(4)
    memory.release()
    memory.release()

    assert (budget.used_bytes, memory.held_bytes) == (0, 0)


def test_inputs_of_a_cancelled_request_count_until_triton_releases_it():
    budget, deferred = MemoryBudget(10), DeferredRelease()
    memory = RequestMemory(budget, deferred)
    memory.take(10)
    deferred.retain()
    memory.release()
    assert budget.used_bytes == 10

    deferred.release()
    assert budget.used_bytes == 0
