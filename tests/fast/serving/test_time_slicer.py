"""Shares the event loop between many small pieces of work."""

import asyncio

from openai_frontend.serving.pooling import SLICE_US, TimeSlicer


async def turns_taken(pieces: int, cost_us: float) -> list[int]:
    """The loop iteration in which each piece ran."""
    turns, turn, taken = TimeSlicer(), 0, []

    async def piece() -> None:
        await turns.take(cost_us)
        taken.append(turn)

    tasks = [asyncio.ensure_future(piece()) for _ in range(pieces)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        turn += 1
    return taken


async def test_pieces_that_fit_run_in_one_slice():
    assert len(set(await turns_taken(10, SLICE_US / 20))) == 1


async def test_more_pieces_use_more_slices():
    """No slice exceeds its time unless a single piece does."""
    taken = await turns_taken(100, SLICE_US / 4)

    assert max(taken.count(turn) for turn in taken) <= 4
    assert taken == sorted(taken)


async def test_piece_longer_than_a_slice_runs_alone():
    taken = await turns_taken(5, SLICE_US * 3)

    assert len(set(taken)) == 5


async def test_cancelled_piece_uses_no_time():
    turns = TimeSlicer()
    first, leaving, staying = (asyncio.ensure_future(turns.take(SLICE_US)) for _ in range(3))
    await first
    leaving.cancel()

    await asyncio.wait_for(staying, 30)

    assert leaving.cancelled()


async def test_new_slice_starts_by_itself():
    """Its time is available to waiting and to later pieces."""
    turns, done = TimeSlicer(), []

    async def piece(name: str) -> None:
        await turns.take(SLICE_US)
        done.append(name)

    await asyncio.wait_for(asyncio.gather(piece("first"), piece("second")), 30)
    for _ in range(3):
        await asyncio.sleep(0)
    await asyncio.wait_for(piece("later"), 30)

    assert done == ["first", "second", "later"]
