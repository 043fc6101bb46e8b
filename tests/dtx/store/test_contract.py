"""This suite tests what every store must do. It runs over memory, SQLite and PostgreSQL."""

from __future__ import annotations

import random

import pytest

from dtx.store.contract import (
    CHUNK,
    NUMBERS_PER_OPENING,
    PENDING,
    Batch,
    StoredBranch,
    StoredDequeue,
    StoredFence,
    StoredMessage,
    StoredQueue,
    StoredRecord,
)
from dtx.store.memory import Disk
from tests.dtx.store.histories import History
from tests.dtx.store.stores import Opened, Place, enqueued, state
from tests.simulation.seeds import few
from xa import Code, Xid

XID = Xid(7, b"gtrid\0\xff", b"bqual")
QUEUE = 1


def test_a_new_store_is_empty_and_its_numbers_are_fresh_at_every_opening(place: Place) -> None:
    opened = place.open()
    assert opened.first > 0
    with opened.batch() as batch:  # what names nothing does nothing
        batch.place(1, 1, 1, 1)
        batch.dequeue(2, CHUNK + 1)
        batch.finish(3)
        batch.complete(4, Code.XA_HEURRB, 1)
        batch.delete_queue(5)
    opened.keep(Batch())
    again = place.open()
    assert state(again.restored) == ([], [], [], [], {})
    assert again.first - opened.first == NUMBERS_PER_OPENING


def test_a_stored_message_is_restored_without_its_payload_and_read_later(place: Place) -> None:
    opened = place.open()
    with opened.batch() as batch:
        batch.create_queue(QUEUE, "orders/ä", '{"depth": 5}')
        batch.enqueue(
            opened.first, QUEUE, opened.first, b"\0\xff,payload", expires_ms=1_700_000_000_000, delivery_count=2
        )

    again = place.open()
    assert again.restored.queues == [StoredQueue(QUEUE, "orders/ä", '{"depth": 5}')]
    assert list(again.restored.messages()) == [
        StoredMessage(opened.first, QUEUE, opened.first, 10, 2, 1_700_000_000_000)
    ]
    assert again.fetch(opened.first) == {opened.first: b"\0\xff,payload"}


def test_when_a_message_is_due_and_its_group_are_restored(place: Place) -> None:
    """Of one that stands in its queue, and of one that a branch posts, whose time has not begun; placing sets the
    times."""
    opened = place.open()
    with opened.batch() as batch:
        batch.create_queue(QUEUE, "orders")
        batch.enqueue(1, QUEUE, 1, b"one", expires_ms=5, due_ms=1_700_000_000_000, group="Grüße ' 1")
        batch.enqueue(2, QUEUE, PENDING, b"two", due_ms=-5000, group="g")
        batch.enqueue_chunked(3, QUEUE, 3, CHUNK + 1, due_ms=9, group="h")
        batch.prepare(100, XID, "me", 1, enqueues=[2])

    again = place.open()
    assert list(again.restored.messages()) == [
        StoredMessage(1, QUEUE, 1, 3, 0, 5, 1_700_000_000_000, "Grüße ' 1"),
        StoredMessage(3, QUEUE, 3, CHUNK + 1, 0, 0, 9, "h"),
    ]
    assert again.restored.branches[0].enqueues == (StoredMessage(2, QUEUE, PENDING, 3, 0, 0, -5000, "g"),)
    with again.batch() as batch:
        batch.finish(100)
        batch.place(2, QUEUE, 9, 0, 7, 1_700_000_005_000)
        batch.place(1, 8, 10, 3)
    assert list(place.open().restored.messages())[1:] == [
        StoredMessage(2, QUEUE, 9, 3, 0, 7, 1_700_000_005_000, "g"),
        StoredMessage(1, 8, 10, 3, 3, 0, 0, "Grüße ' 1"),
    ]


def test_a_queue_that_is_told_again_is_as_it_was(place: Place) -> None:
    """Also among the batches of one force, and together with a message."""
    opened = place.open()
    batches = [enqueued([number], QUEUE) for number in (1, 2, 3)]
    for batch, name in zip(batches, ("orders", "again", "again"), strict=True):
        batch.create_queue(QUEUE, name)
    opened.keep(batches[0])
    opened.keep(*batches[1:])
    restored = place.open().restored
    assert [queue.name for queue in restored.queues] == ["orders"]
    assert [facts.number for facts in restored.messages()] == [1, 2, 3]


def test_messages_move_with_their_payloads_and_come_by_queue_and_position(place: Place) -> None:
    """Whatever their numbers; of several placements the last one counts, and one that is dequeued is gone."""
    opened = place.open()
    with opened.batch() as batch:
        for number, queue, position in ((1, 2, 30), (2, 1, 20), (3, 2, 10), (4, 1, 10), (5, 2, 20)):
            batch.enqueue(number, queue, position, b"payload")

    with opened.batch() as batch:
        batch.dequeue(5, 7)
    moved = [Batch() for _ in range(3)]
    for count, batch in enumerate(moved, 1):
        batch.place(1, 9, 10 + count, count)
    opened.keep(*moved)
    assert opened.fetch(1, 5) == {1: b"payload"}
    again = place.open()
    assert list(again.restored.messages()) == [
        StoredMessage(4, 1, 10, 7, 0, 0),
        StoredMessage(2, 1, 20, 7, 0, 0),
        StoredMessage(3, 2, 10, 7, 0, 0),
        StoredMessage(1, 9, 13, 7, 3, 0),
    ]
    assert again.fetch(1, 5) == {1: b"payload"}


def publish(batch: Batch, size: int, *queues: int) -> None:
    """A message 20 that a branch has posted goes to these queues, as 21 and so on."""
    batch.unpost(20)
    for number, queue in enumerate(queues, 21):
        batch.copy(number, 20, queue, number, size, expires_ms=7, due_ms=8, group="g")


@pytest.mark.parametrize("size", [5, CHUNK + 3])
@pytest.mark.parametrize("prepared", [True, False])
def test_copies_share_one_payload_that_goes_with_the_last_of_them(place: Place, size: int, *, prepared: bool) -> None:
    opened, payload = place.open(), b"x" * size
    with opened.batch() as batch:
        for queue in (1, 2, 3):
            batch.create_queue(queue, f"queue {queue}")
        if prepared:
            batch.enqueue(20, 9, PENDING, payload)
            batch.prepare(100, XID, "me", 1, enqueues=[20])
    with opened.batch() as batch:
        if prepared:
            batch.finish(100)
        else:
            batch.enqueue(20, 9, PENDING, payload)
        publish(batch, size, 1, 2, 3)

    def there(opened: Opened) -> bool:
        if size > CHUNK:
            return opened.fetch_chunk(20, 1) is not None
        return opened.fetch(20) == {20: payload}

    again = place.open()
    assert list(again.restored.messages()) == [
        StoredMessage(20 + queue, queue, 20 + queue, size, 0, 7, 8, "g") for queue in (1, 2, 3)
    ]
    assert again.restored.shares == {21: 20, 22: 20, 23: 20}
    assert there(again)

    with again.batch() as batch:
        batch.dequeue_copy(21, 20)
        batch.place(22, 1, 30, 1)  # a dead letter keeps its payload
    again = place.open()
    assert again.restored.shares == {22: 20, 23: 20}
    assert there(again)
    with again.batch() as batch:
        batch.delete_queue(3)
    again = place.open()
    assert again.restored.shares == {22: 20}
    assert there(again)
    with again.batch() as batch:
        batch.dequeue_copy(22, 20)
    again = place.open()
    assert again.restored.shares == {}
    assert not list(again.restored.messages())
    assert not there(again)


def test_copies_go_together_with_their_queues(place: Place) -> None:
    """One in a queue that is deleted, one that is dequeued in the same force, and one in another such queue."""
    opened = place.open()
    with opened.batch() as batch:
        for queue in (1, 2, 3):
            batch.create_queue(queue, f"queue {queue}")
        batch.enqueue(20, 9, PENDING, b"hello")
        publish(batch, 5, 1, 2, 3)
    batches = [Batch() for _ in range(3)]
    batches[0].delete_queue(1)
    batches[1].dequeue_copy(22, 20)
    batches[2].delete_queue(3)
    opened.keep(*batches)
    again = place.open()
    assert state(again.restored)[1:] == ([], [], [], {})
    assert again.fetch(20) == {}


def prepare(batch: Batch) -> None:
    """A branch that posts 11 and 12, and retires 2 and 1, which stand in the queue."""
    batch.enqueue(11, 5, PENDING, b"eleven", expires_ms=9)
    batch.enqueue(12, 6, PENDING, b"twelve")
    batch.prepare(100, XID, "orders-svc", 123, enqueues=[11, 12], dequeues=[(2, b""), (1, b"\x00\x53\x25")])


def in_doubt(place: Place) -> Opened:
    """A store with three messages and that branch, opened again."""
    opened = place.open()
    opened.keep(enqueued([1, 2, 3], QUEUE))
    with opened.batch() as batch:
        prepare(batch)
    return place.open()


def commit(batch: Batch) -> None:
    batch.place(11, 5, 200, 0)
    batch.place(12, 6, 201, 0)
    batch.dequeue(1, 7)
    batch.dequeue(2, 7)


AFTER_COMMIT = [(3, QUEUE, 3), (11, 5, 200), (12, 6, 201)]


def places(opened: Opened) -> list[tuple[int, int, int]]:
    return [(facts.number, facts.queue, facts.position) for facts in opened.restored.messages()]


def test_a_prepared_branch_is_restored_with_what_it_holds_and_committed(place: Place) -> None:
    opened = in_doubt(place)
    assert opened.restored.branches == [
        StoredBranch(
            100,
            XID,
            "orders-svc",
            123,
            None,
            0,
            (StoredMessage(11, 5, PENDING, 6, 0, 9), StoredMessage(12, 6, PENDING, 6, 0, 0)),
            (StoredDequeue(2, b""), StoredDequeue(1, b"\x00\x53\x25")),
        )
    ]
    assert places(opened) == [(number, QUEUE, number) for number in (1, 2, 3)]
    assert opened.fetch(11, 12) == {11: b"eleven", 12: b"twelve"}

    with opened.batch() as batch:
        batch.finish(100)
        commit(batch)
        batch.prepare(101, XID, "", 1)  # with nothing in it
    again = place.open()
    assert again.restored.branches == [StoredBranch(101, XID, "", 1, None, 0, (), ())]
    assert places(again) == AFTER_COMMIT


def test_rollback_of_a_prepared_branch(place: Place) -> None:
    opened = in_doubt(place)
    before = list(opened.restored.messages())
    with opened.batch() as batch:
        batch.finish(100)
        batch.dequeue(11, 6)
        batch.dequeue(12, 6)
    again = place.open()
    assert again.restored.branches == []
    assert list(again.restored.messages()) == before
    assert again.fetch(11, 12) == {}


def test_a_heuristic_completion_is_remembered_until_it_is_forgotten(place: Place) -> None:
    with in_doubt(place).batch() as batch:
        batch.complete(100, Code.XA_HEURCOM, 456)
        commit(batch)
    again = place.open()
    assert again.restored.branches == [StoredBranch(100, XID, "orders-svc", 123, Code.XA_HEURCOM, 456, (), ())]
    assert places(again) == AFTER_COMMIT
    with again.batch() as batch:
        batch.finish(100)
    assert place.open().restored.branches == []


def test_branches_differ_by_every_part_of_their_xid_and_may_come_again(place: Place) -> None:
    opened = place.open()
    xids = [Xid(1, b"g", b"b"), Xid(2, b"g", b"b"), Xid(1, b"g", b""), Xid(1, b"gb", b"")]
    for number, xid in enumerate(xids, 1):
        with opened.batch() as batch:
            batch.prepare(number, xid, "", 1)
    gone, back = Batch(), Batch()
    gone.finish(1)
    back.prepare(9, xids[0], "", 2)
    opened.keep(gone, back)
    assert [(branch.number, branch.xid) for branch in place.open().restored.branches] == [
        *enumerate(xids[1:], 2),
        (9, xids[0]),
    ]


def test_a_deleted_queue_takes_its_messages_along_but_not_those_of_branches(place: Place) -> None:
    opened = place.open()
    batch = Batch()
    prepare(batch)
    batch.create_queue(5, "five")
    batch.create_queue(QUEUE, "one")
    opened.keep(enqueued([1, 2], 5), enqueued([3], QUEUE), batch)
    with opened.batch() as batch:
        batch.delete_queue(5)
    assert opened.fetch(1, 2, 3, 11) == {3: b"payload", 11: b"eleven"}
    again = place.open()
    assert [queue.name for queue in again.restored.queues] == ["one"]
    assert [facts.number for facts in again.restored.messages()] == [3]
    assert [facts.number for facts in again.restored.branches[0].enqueues] == [11, 12]


def test_fences_and_records_stand_until_they_are_lifted_or_replaced(place: Place) -> None:
    opened = place.open()
    first, again = Batch(), Batch()
    first.fence(b"g1\0", "node-1", 10)
    first.fence(b"g2", "node-1", 11)
    first.record(opened.first, "audit", "who did what")
    first.record(opened.first + 1, "mark", "1")
    again.fence(b"g1\0", "node-2", 12)
    again.record(opened.first, "audit", "who did more: Ä")
    opened.keep(first, again)

    with opened.batch() as batch:
        batch.lift_fence(b"g2")
        batch.lift_fence(b"never was there")
        batch.drop_record(opened.first + 1)
        batch.drop_record(opened.first + 2)
    restored = place.open().restored
    assert restored.fences == [StoredFence(b"g1\0", "node-2", 12)]
    assert restored.records == [StoredRecord(opened.first, "audit", "who did more: Ä")]


def large(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def test_large_messages_are_stored_and_read_in_pieces(place: Place) -> None:
    """Also where the pieces come ahead of their message; those whose message never came are dropped."""
    sizes = {1: CHUNK + 1, 2: 2 * CHUNK, 3: 3 * CHUNK - 1, 4: 2 * CHUNK + 5}
    opened = place.open()
    opened.keep(*(enqueued([number], QUEUE, large(sizes[number])) for number in (1, 2, 3)))
    for number in range(3):
        with opened.batch() as batch:
            batch.chunk(4, number, large(sizes[4])[number * CHUNK : (number + 1) * CHUNK])
            batch.chunk(5, number, large(CHUNK))
            batch.chunk(6, number, large(CHUNK))
    with opened.batch() as batch:
        batch.enqueue_chunked(4, QUEUE, 4, sizes[4], expires_ms=4)
        batch.dequeue(5, 3 * CHUNK)
    assert [opened.fetch_chunk(number, 0) is None for number in (5, 6)] == [True, False]

    again = place.open()
    assert again.fetch_chunk(6, 0) is None
    assert list(again.restored.messages()) == [
        StoredMessage(number, QUEUE, number, size, 0, 4 * (number == 4)) for number, size in sizes.items()
    ]
    for message, size in sizes.items():
        pieces = [again.fetch_chunk(message, number) for number in range((size + CHUNK - 1) // CHUNK)]
        assert b"".join(piece or b"" for piece in pieces) == large(size)
        assert again.fetch_chunk(message, len(pieces)) is None
    with again.batch() as batch:
        batch.dequeue(1, sizes[1])
    assert again.fetch_chunk(1, 0) is None


def test_many_payloads_of_every_kind_are_fetched_at_once(place: Place) -> None:
    dice = random.Random(4)
    payloads = {number: dice.randbytes(dice.choice([0, 1, 2, 100, 5000])) for number in range(1, 700)}
    opened = place.open()
    with opened.batch() as batch:
        for number, payload in payloads.items():
            batch.enqueue(number, QUEUE, number, payload)
    wanted = [*payloads, 100_000]
    dice.shuffle(wanted)
    assert place.open().fetch(*wanted) == payloads


def test_octets_wait_until_they_are_answered(place: Place) -> None:
    opened = place.open()
    store = opened.store
    answers: list[int] = []
    for number in (1, 2):
        store.submit(enqueued([number], QUEUE, b"x" * 1000), lambda _: answers.append(store.waiting_octets))
    assert store.waiting_octets == 2000
    opened.loop.until(lambda: len(answers) == 2)
    assert store.waiting_octets == 0


HISTORIES = [
    *(("sqlite", seed) for seed in few(4)),
    *(("postgres", seed) for seed in few(2)),
    *(pytest.param("sqlite", seed, marks=pytest.mark.slow) for seed in range(4, 12)),
]


@pytest.mark.parametrize(("sql_place", "seed"), HISTORIES, indirect=["sql_place"])
def test_batches_that_share_a_force_end_where_they_would_one_by_one(sql_place: Place, seed: int) -> None:
    """Random histories: many batches in a group in the store, one by one in memory."""
    dice = random.Random(seed)
    reference, history = Place(Disk()), History(dice, NUMBERS_PER_OPENING)

    for _ in range(3):
        opened, simple = sql_place.open(), reference.open()
        batches = [history.batch() for _ in range(dice.randrange(40))]
        opened.keep(*batches)
        for batch in batches:
            simple.keep(batch)
        restored, expected = sql_place.open(), reference.open()
        assert state(restored.restored) == state(expected.restored)
        shares = expected.restored.shares
        payloads = [(shares.get(one.number, one.number), one.size) for one in expected.restored.messages()]
        small = {number for number, size in payloads if size <= CHUNK}
        assert restored.fetch(*small) == expected.fetch(*small)
        assert small == restored.fetch(*small).keys()
        for number in {number for number, size in payloads if size > CHUNK}:
            assert restored.fetch_chunk(number, 1) == expected.fetch_chunk(number, 1) is not None
        gone = [number for number, size in history.sizes.items() if size <= CHUNK and number not in small]
        assert restored.fetch(*gone) == expected.fetch(*gone)
