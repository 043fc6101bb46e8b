"""These tests check that there is one thread of control per thread, and one per asyncio task that entered its own, and
that contexts carry it.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from tests.event_loop import in_loop
from xa import ThreadOfControl, entered, switch_control, thread_of_control


def test_a_thread_keeps_its_own() -> None:
    assert thread_of_control() is thread_of_control()


def test_threads_are_apart() -> None:
    barrier = Barrier(4)

    def ask() -> tuple[ThreadOfControl, ThreadOfControl]:
        first = thread_of_control()
        barrier.wait(timeout=30)  # all four threads live at once
        return first, thread_of_control()

    with ThreadPoolExecutor(4) as pool:
        pairs = [future.result() for future in [pool.submit(ask) for _ in range(4)]]
    assert all(first is second for first, second in pairs)
    assert len({first for first, _ in pairs} | {thread_of_control()}) == 5


def test_entered_nests_and_restores() -> None:
    outer = thread_of_control()
    one, other = ThreadOfControl(), ThreadOfControl()
    with entered(one) as inside:
        assert inside is one
        assert thread_of_control() is one
        with entered(other):
            assert thread_of_control() is other
        assert thread_of_control() is one
    assert thread_of_control() is outer


def test_switch_gives_back_what_was() -> None:
    outer = thread_of_control()
    one = ThreadOfControl()
    assert switch_control(one) is outer
    assert thread_of_control() is one
    assert switch_control(None) is one
    fresh = thread_of_control()
    assert fresh not in {one, outer}
    assert switch_control(outer) is fresh


def test_tasks_with_their_own_are_apart() -> None:
    async def work() -> ThreadOfControl:
        with entered(ThreadOfControl()) as control:
            for _ in range(3):
                await asyncio.sleep(0)
                assert thread_of_control() is control
            return control

    async def main() -> list[ThreadOfControl]:
        before = thread_of_control()
        controls = await asyncio.gather(*(work() for _ in range(8)))
        assert thread_of_control() is before
        return controls

    assert len(set(asyncio.run(main()))) == 8


@in_loop
async def test_a_task_inherits_from_its_maker() -> None:
    async def ask() -> ThreadOfControl:
        return thread_of_control()

    with entered(ThreadOfControl()) as control:
        task = asyncio.create_task(ask())
    assert thread_of_control() is not control
    assert await task is control


def test_a_thread_of_control_can_be_collected() -> None:
    control = ThreadOfControl()
    reference = weakref.ref(control)
    with entered(control):
        pass
    del control
    gc.collect()
    assert reference() is None
