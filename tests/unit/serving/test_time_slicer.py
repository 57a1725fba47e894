"""Many small pieces of work in turns of the event loop."""

import asyncio

from openai_frontend.serving.admission.time_slicer import SLICE_US, TimeSlicer


async def turns_taken(pieces: int, cost_us: float) -> list[int]:
    """In which turn of the loop each piece had its time."""
    turns, turn, taken = TimeSlicer(), 0, []

    async def piece() -> None:
        await turns.take(cost_us)
        taken.append(turn)

    tasks = [asyncio.ensure_future(piece()) for _ in range(pieces)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        turn += 1
    return taken


async def test_pieces_that_fit_share_a_turn():
    """Work that a turn has time for waits for nothing."""
    assert len(set(await turns_taken(10, SLICE_US / 20))) == 1


async def test_more_pieces_take_more_turns():
    """No turn has more than its time, but for one piece."""
    taken = await turns_taken(100, SLICE_US / 4)

    assert max(taken.count(turn) for turn in taken) <= 4
    assert taken == sorted(taken)


async def test_a_piece_larger_than_a_turn_has_one_of_its_own():
    """It is late, but it comes."""
    taken = await turns_taken(5, SLICE_US * 3)

    assert len(set(taken)) == 5


async def test_who_leaves_takes_no_time():
    """A cancelled piece holds nobody up."""
    turns = TimeSlicer()
    first, leaving, staying = (asyncio.ensure_future(turns.take(SLICE_US)) for _ in range(3))
    await first
    leaving.cancel()

    await asyncio.wait_for(staying, 10)

    assert leaving.cancelled()


async def test_a_new_turn_begins_by_itself():
    """Time that was used up comes back, to who waits for it and to who comes later."""
    turns, done = TimeSlicer(), []

    async def piece(name: str) -> None:
        await turns.take(SLICE_US)
        done.append(name)

    await asyncio.wait_for(asyncio.gather(piece("first"), piece("second")), 10)
    for _ in range(3):
        await asyncio.sleep(0)
    await asyncio.wait_for(piece("later"), 10)

    assert done == ["first", "second", "later"]
