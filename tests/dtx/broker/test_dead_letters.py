"""Dead letters say why they are ones without being opened: in groups over all of them, also after a crash, from
whichever client; and an operator retries or deletes a group as it was shown."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from random import Random
from typing import Any

import pytest
from proton import Condition as ProtonCondition
from proton import Delivery, Described, Message, symbol, ulong

from dtx.broker.management import transfers
from dtx.broker.queues.dead_letters import MOST_ERROR, MOST_GROUPS, OTHERS, DeadLetters, Origin, noted_origin
from dtx.broker.queues.entry import Entry
from dtx.protocol.commands import Commit, Prepare, Rollback, Start
from dtx.protocol.replies import MODIFIED, TRANSACTIONAL
from dtx.store.contract import CHUNK, Step
from tests.dtx.broker.peer import OK, XID, Peer, World, dead, filled, manage, queue_told, say_state

PLACE = "/srv/shop/orders.py:17 in handle"


def letter(error: str, *, place: str = PLACE, queue: str = "q", body: Any = "x") -> bytes:
    """A dead letter as a consumer of xabridge sends it."""
    notes = {"reason": error, "place": place, "queue": queue}
    annotations = {symbol(f"x-opt-dead-{name}"): note for name, note in notes.items()}
    return bytes(Message(body=body, annotations=annotations).encode())


def send(peer: Peer, *letters: bytes, queue: str = "q.dead", txn_id: bytes | None = None) -> None:
    """Sends these to a queue."""
    link = peer.sender(queue)
    for octets in letters:
        peer.send_octets(link, octets, peer.name("m"), txn_id)
    peer.world.pump()


def groups(peer: Peer, **asked: Any) -> list[Any]:
    """What management tells of the groups, the largest first."""
    return sorted(manage(peer, operation="dead-letters", **asked), key=lambda group: -group["letters"])


def change(peer: Peer, operation: str, shown: Any, **asked: Any) -> Any:
    """Changes a group as it was shown."""
    wanted = {"group": shown["id"], "until": shown["until"], "most": int(shown["letters"])}
    return manage(peer, operation=operation, queue="q.dead", **wanted, **asked)


def facts(peer: Peer) -> list[tuple[Any, ...]]:
    """The same, shortly."""
    names = ("letters", "from", "why", "error", "place")
    return [tuple(group[name] for name in names) for group in groups(peer)]


def test_letters_that_consumers_sent_are_grouped_by_exception_and_place(world: World, peer: Peer) -> None:
    send(
        peer,
        *(letter(f"ValueError: no customer {number}") for number in range(3)),
        letter("ValueError: no customer 'Ada'", place="/srv/shop/orders.py:30 in check"),
        letter("KeyError: 'total'"),
        letter("KeyError: 'tax'", body="x" * (CHUNK + 1)),  # which is stored in pieces, and sent in several frames
        bytes(Message(body="by hand").encode()),
    )

    for one in (peer, world.crash().connect()):
        first, second, *rest = facts(one)
        assert first == (3, "q", None, "ValueError: no customer 0", PLACE)
        assert second == (2, "q", None, "KeyError: 'total'", PLACE)
        assert sorted(rest, key=str) == [
            (1, "q", None, "ValueError: no customer 'Ada'", "/srv/shop/orders.py:30 in check"),
            (1, None, None, None, None),
        ]
        assert manage(one, operation="messages", queue="q.dead")[2]["error"] == "ValueError: no customer 2", "its own"


def test_letters_that_the_broker_made_say_what_they_were_rejected_for() -> None:
    world, peer = filled("bad", "worse", "worst")
    link = peer.receiver("q", 3)
    for error in (ProtonCondition("shop:no", "no such customer 17"), ProtonCondition("shop:no"), None):
        delivery, _ = peer.taken(link)
        if error is not None:
            delivery.local.condition = error
        peer.settle(delivery, Delivery.REJECTED)
    said = sorted(facts(peer), key=str)
    assert said == [
        (1, "q", "rejected", "no such customer 17", None),
        (1, "q", "rejected", "shop:no", None),
        (1, "q", "rejected", None, None),
    ]
    assert sorted(facts(world.crash().connect()), key=str) == said


def test_what_a_consumer_said_of_a_failure_is_said_of_the_letter_that_the_broker_makes(peer: Peer) -> None:
    """It was said with the outcome of a transaction that was rolled back."""
    peer.fill("q", "bad")
    control = peer.coordinator()
    link, delivery, _ = peer.first()
    txn_id = control.declare()
    failed = Described(ulong(MODIFIED), [True, False, {symbol("x-opt-retry-reason"): "ValueError: no"}])
    say_state(delivery, TRANSACTIONAL, [txn_id, failed])
    peer.world.pump()
    control.discharge(txn_id, fail=True)
    peer.world.close(link)
    peer.settle(peer.first()[1], Delivery.REJECTED)
    assert facts(peer) == [(1, "q", "rejected", "ValueError: no", None)]


def test_a_letter_of_a_transaction_is_one_when_it_is_committed(world: World, peer: Peer) -> None:
    control = peer.coordinator()
    for verb, count in ((Rollback(XID), 0), (Commit(XID), 1)):
        txn_id = control.declare(Start(XID))
        send(peer, letter("ValueError: no"), txn_id=txn_id)
        control.discharge(txn_id)

        assert peer.ask(Prepare(XID)) == OK
        world = world.crash()
        peer = world.connect()
        control = peer.coordinator()
        assert not facts(peer), "it is prepared"

        assert peer.ask(verb) == OK
        world = world.crash()
        peer = world.connect()
        control = peer.coordinator()
        assert [group[0] for group in facts(peer)] == [1] * count
        assert len(records(world)) == count, "what was rolled back leaves nothing"


def records(world: World) -> list[Any]:
    """The origins that the store has."""
    return [one for one in world.disk.records.values() if one.kind == "origin"]


def test_groups_end_with_their_letters(world: World, peer: Peer) -> None:
    send(peer, letter("ValueError: no"), letter("ValueError: no"), letter("KeyError: x"))
    assert peer.bodies(peer.receiver("q.dead", 2)) == ["x", "x"]
    assert [(group["letters"], group["error"]) for group in groups(peer)] == [(1, "KeyError: x")]
    assert queue_told(peer, "q.dead")["dead-letters"] == 1
    assert len(records(world)) == 1
    manage(peer, operation="purge", queue="q.dead")
    assert not groups(peer)
    assert not records(world)


@pytest.mark.parametrize("operation", ["retry", "purge", "move"])
def test_a_group_is_changed_as_it_was_shown(world: World, peer: Peer, operation: str) -> None:
    """What comes later is left, also if it is alike, and so is every other group."""
    for queue in ("q", "other.dead"):
        peer.sender(queue)
    send(peer, *(letter(f"ValueError: no {number}", body=number) for number in range(3)), letter("KeyError: x"))
    shown = groups(peer)[0]
    send(peer, letter("ValueError: no 9", body=9))
    target = {"to": "other.dead"} if operation == "move" else {}
    assert change(peer, operation, shown, **target) == {"done": 3, "left": {}}

    after = world.crash()
    operator = after.connect()
    where = {"retry": "q", "purge": "", "move": "other.dead"}[operation]
    assert operator.drained("q.dead") == ["x", 9]
    assert operator.drained(where or "q") == ([0, 1, 2] if where else [])
    moved = [group["error"] for group in groups(operator, queue="other.dead")]
    assert moved == (["ValueError: no 0"] if operation == "move" else []), "a letter that is moved says why it is one"
    assert len(records(after)) == (5 if operation == "move" else 2)


def test_held_letters_of_a_group_stay(world: World, peer: Peer) -> None:
    send(peer, *(letter("ValueError: no", body=number) for number in range(3)))
    consumer = world.connect()
    consumer.first("q.dead")
    shown = groups(peer)[0]
    answer = change(peer, "purge", shown)
    assert answer == {"done": 2, "left": {"held by a consumer or a transaction": 1}}


def test_a_group_among_many_letters_is_found_in_steps(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "LOOKED_AT", 10)
    monkeypatch.setattr("dtx.broker.management.messages.LOOKED_AT", 10)
    send(peer, *(letter("ValueError: no") for _ in range(45)), *(letter("KeyError: x") for _ in range(2)))
    shown = groups(peer)[1]
    assert change(peer, "copy", shown, to="q.dead") == {"done": 2, "left": {}}
    assert change(peer, "purge", shown) == {"done": 2, "left": {}}
    assert [group["letters"] for group in groups(peer)] == [45, 2], "the copies came later"
    assert manage(peer, operation="purge", queue="q.dead", group="others", until="ffffffffff") == {
        "done": 0,
        "left": {},
    }


def test_a_retry_does_not_believe_a_sender(peer: Peer) -> None:
    """A letter goes back by the name of its queue, whatever its sender has noted."""
    for queue in ("q", "payments"):
        peer.sender(queue)
    send(peer, letter("ValueError: no", queue="payments"))
    assert manage(peer, operation="retry", queue="q.dead")["done"] == 1
    assert (peer.drained("q"), peer.drained("payments")) == (["x"], [])


def test_groups_come_in_pages(peer: Peer) -> None:
    for queue in ("a.dead", "b/c.dead"):
        send(peer, *(letter(f"{kind}: x") for kind in ("A", "B", "C")), queue=queue)
    found: list[Any] = []
    while page := manage(peer, operation="dead-letters", count=2, after=found[-1]["position"] if found else ""):
        found += page
    assert len({group["position"] for group in found}) == len(found) == 6
    assert [group["queue"] for group in found] == ["a.dead"] * 3 + ["b/c.dead"] * 3


# -- what strangers send
def test_hostile_notes_are_shown_cut_and_escaped(world: World, peer: Peer) -> None:
    """And are stored in any database: a NUL is refused by PostgreSQL."""
    send(peer, letter("a\0b\n\x1b[2J<b>" + "x" * 5000, place="/home\n\x1b" + "y" * 5000 + ":7 in f", queue="q\n\0r"))
    for one in (peer, world.crash().connect()):
        (group,) = groups(one)
        assert group["error"].startswith(r"a\x00b\n\x1b[2J<b>xxx")
        assert len(group["error"]) == MOST_ERROR
        assert group["place"].startswith("…yyy")
        assert group["place"].endswith("yyy:7 in f")
        assert group["from"] == r"q\n\x00r"
    (record,) = records(world)
    assert "\0" not in record.text


@pytest.mark.parametrize(
    "octets",
    [
        letter("x" * (1 << 20)),
        letter("ValueError")[:30],
        b"\x00\x53\x72\xc1\x03\x02\xa1\x09",
        bytes(Message(body="x", annotations={symbol("x-opt-dead-reason"): 7}).encode()),
    ],
    ids=["a megabyte", "cut", "damaged", "a number"],
)
def test_notes_that_can_not_be_read_say_nothing(octets: bytes) -> None:
    assert noted_origin(octets, 0) == Origin()


def test_what_others_note_in_properties_is_read() -> None:
    said = {"DeadLetterReason": "Expired", "DeadLetterErrorDescription": "too late"}
    assert noted_origin(bytes(Message(body="x", properties=said).encode()), 0) == Origin(error="Expired: too late")
    said = {"x-opt-dead-reason": "ValueError: no", "x-opt-dead-place": "a.py:7 in f"}
    noted = noted_origin(bytes(Message(body="x", properties=said).encode()), 0)
    assert noted == Origin("", "", "ValueError: no", "a.py:7 in f")


def test_many_different_reasons_stay_bounded(world: World) -> None:
    """5,000 reasons that no two letters share: the rest is counted as one group, and leaves it again. An entry costs
    a bounded time, whatever it says."""
    resource = world.connect().world.container.resource
    letters, queue = DeadLetters(resource.number), resource.create("many.dead")
    found = []
    before = time.process_time()
    for number in range(5_000):
        entry = Entry(queue, number, 1, 0, position=number + 1)
        name = "".join(chr(ord("a") + int(digit)) for digit in str(number))
        entry.origin = Origin("q", "", f"Error: {name} " + "'\"" * 60)
        letters.add(entry)
        found.append(entry)
    took_s = time.process_time() - before

    found_groups = list(letters.groups())
    assert len(found_groups) == MOST_GROUPS + 1
    assert (found_groups[-1].id, sum(group.count for group in found_groups)) == (OTHERS, 5_000)
    assert took_s < 1, f"{took_s:.1f} s for 5,000"
    for entry in found:
        letters.remove(entry)
    assert (list(letters.groups()), letters.count) == ([], 0)


def junk(count: int, first: int = 0) -> list[bytes]:
    """Letters with reasons of their own."""
    return [letter(f"Error: {number:b}".translate({48: "a", 49: "b"})) for number in range(first, first + count)]


def largest(peer: Peer, count: int = 2) -> list[tuple[int, str]]:
    """How many letters the first groups have, and for which reason."""
    return [(group["letters"], group["error"] or group["id"]) for group in groups(peer)][:count]


def test_a_reason_that_has_many_letters_becomes_a_group(world: World, peer: Peer) -> None:
    """Also where every group was taken when its first letter came, and the same after a restart."""
    send(peer, *junk(300))
    assert largest(peer, 1) == [(100, OTHERS)]
    send(peer, *(letter("KeyError: x") for _ in range(150)))
    for one in (peer, world.crash().connect()):
        assert largest(one) == [(150, "KeyError: x"), (101, OTHERS)]
        assert len(groups(one)) == MOST_GROUPS + 1


def test_a_group_that_is_free_is_for_the_largest_of_the_others(peer: Peer) -> None:
    """200 groups of three go, and one shrinks; the reasons with two letters each get groups of their own."""
    send(peer, *(junk(MOST_GROUPS) * 3))
    send(peer, *(junk(2, first=1000) * 2), *junk(300, first=2000))
    shown = groups(peer)
    assert (shown[0]["id"], shown[0]["letters"]) == (OTHERS, 304)
    assert change(peer, "purge", {**shown[1], "letters": 2})["done"] == 2
    assert [group["letters"] for group in groups(peer)[-2:]] == [3, 2]
    assert manage(peer, operation="purge", queue="q.dead", most=3 * MOST_GROUPS - 2)["done"] == 3 * MOST_GROUPS - 2
    assert [group["letters"] for group in groups(peer)] == [102, 2, 2, *[1] * 198]


def test_others_are_changed_as_they_were_shown(world: World, peer: Peer) -> None:
    """Of a kind that was a group then, nothing is deleted with the others, wherever it is now."""
    send(peer, *junk(MOST_GROUPS + 2))
    shown = groups(peer)
    assert (shown[0]["id"], shown[0]["letters"]) == (OTHERS, 2)
    was_alone = {group["error"] for group in shown if group["id"] != OTHERS}
    send(peer, *(junk(1, first=MOST_GROUPS) * 2), *(junk(10, first=1000) * 2))
    now = groups(peer)
    assert sum(group["letters"] for group in now) == MOST_GROUPS + 2 + 2 + 20
    assert now[0]["id"] == OTHERS
    assert change(peer, "purge", {**shown[0], "letters": 1000})["done"] == 1, "one of two is a group now"
    left = {one["error"] for one in manage(peer, operation="messages", queue="q.dead", count=1000)}
    assert was_alone <= left

    operator = world.crash().connect()
    assert change(operator, "purge", {**now[0], "letters": 1000})["done"] == 0, "the groups are formed anew"
    again = groups(operator)[0]
    assert change(operator, "purge", again)["done"] == again["letters"] > 0
    assert [group["id"] for group in groups(operator) if group["id"] == OTHERS] == []


def test_groups_are_right_whatever_comes_and_goes(world: World) -> None:
    """Counts are exact, no kind among the others has more letters than a group, and what was shown is kept."""
    resource = world.connect().world.container.resource
    letters, queue = DeadLetters(resource.number), resource.create("many.dead")
    chance = Random(7)
    found: list[Entry] = []
    shown: tuple[int, set[Entry]] = (0, set())
    for _ in range(20_000):
        if found and chance.random() < 0.48:
            place = chance.randrange(len(found))
            found[place], found[-1] = found[-1], found[place]
            letters.remove(found.pop())
        else:
            entry = Entry(queue, resource.number(), 1, 0, position=resource.number())
            entry.origin = Origin(error="x" * int(chance.paretovariate(0.7) % 600))
            letters.add(entry)
            found.append(entry)

        if chance.random() < 0.02:
            now = list(letters.groups())
            meant = {entry for entry in found if letters.was_shown(entry, OTHERS, shown[0])}
            assert meant <= shown[1], "seed 7"
            among = Counter(letters.group_of(entry) for entry in found)
            assert {group.id: group.count for group in now} == among, "seed 7"
            others = [entry for entry in found if letters.group_of(entry) == OTHERS]
            most = max(Counter(entry.origin for entry in others).values(), default=0)
            assert most <= min((group.count for group in now if group.id != OTHERS), default=0), "seed 7"
            if others:
                assert all(letters.was_shown(entry, OTHERS, now[-1].until) for entry in others), "seed 7"
                if chance.random() < 0.2:
                    shown = (now[-1].until, set(others))


def test_alike_letters_share_what_is_kept_of_them(peer: Peer) -> None:
    send(peer, *(letter("ValueError: no such customer") for _ in range(100)))
    entries = list(peer.world.queue("q.dead"))
    assert len({id(entry.origin) for entry in entries}) == 1


def test_what_earlier_versions_kept_is_read() -> None:
    assert Origin.decode("rejected\norders") == Origin("orders", "rejected")
    whole = Origin("orders", "rejected", "ValueError: no", PLACE)
    assert Origin.decode(whole.encode()) == whole


def test_a_dead_letter_that_is_copied_says_why_it_is_one(world: World, peer: Peer) -> None:
    peer.sender("other.dead")
    send(peer, letter("ValueError: no"))
    assert manage(peer, operation="copy", queue="q.dead", to="other.dead")["done"] == 1
    assert [group["error"] for group in groups(world.crash().connect())] == ["ValueError: no"] * 2


@pytest.mark.parametrize("away", ["parked", "q"])
def test_a_dead_letter_that_is_moved_away_and_back_says_why_it_is_one(world: World, peer: Peer, away: str) -> None:
    """Wherever the broker is killed in between. In the queue that it came from it is a message as before."""
    peer.fill("q", "bad")
    peer.sender("parked")
    peer.settle(peer.first()[1], Delivery.REJECTED)
    send(peer, letter("ValueError: no"))
    was = sorted(facts(peer), key=str)
    place, expected = "q.dead", set(was)
    for target in (away, "q.dead", away):
        assert manage(peer, operation="move", queue=place, to=target)["done"] == 2
        place = target
        expected_groups = [] if target == "q" else was
        for one in (peer, world.crash().connect()):
            assert sorted(facts(one), key=str) == expected_groups
            listed = manage(one, operation="messages", queue=place)
            assert {(1, each["from"], each["why"], each["error"], each["place"]) for each in listed} == expected
        world = world.crash()
        peer = world.connect()
        assert len(records(world)) == 2

    assert peer.drained(place) == ["bad", "x"]
    peer.bodies(peer.receiver(place, 2))
    assert not records(world)


class KilledError(Exception):
    """The broker is killed."""


@pytest.mark.parametrize("step", list(Step))
def test_a_kill_while_a_dead_letter_is_moved_loses_no_origin(world: World, peer: Peer, step: Step) -> None:
    peer.fill("q", "bad")
    peer.sender("parked")
    peer.settle(peer.first()[1], Delivery.REJECTED)

    def hook(reached: Step) -> None:
        if reached is step:
            raise KilledError

    world.store._hook = hook
    with contextlib.suppress(KilledError):
        manage(peer, operation="move", queue="q.dead", to="parked")
    after = world.crash()
    operator = after.connect()
    assert facts(operator) == [(1, "q", "rejected", None, None)]
    (found,) = groups(operator)
    assert manage(operator, operation="retry", queue=found["queue"])["done"] == 1
    assert operator.drained("q") == ["bad"]
    assert not records(after)


def test_a_dead_letter_that_was_moved_and_fails_again_says_why_it_fails_now(world: World, peer: Peer) -> None:
    peer.sender("parked")
    send(peer, letter("ValueError: no"))
    manage(peer, operation="move", queue="q.dead", to="parked")
    peer.settle(peer.first("parked")[1], Delivery.REJECTED)
    for one in (peer, world.crash().connect()):
        assert facts(one) == [(1, "parked", "rejected", None, None)]
    assert len(records(world)) == 1


def test_a_deleted_queue_leaves_no_record(world: World, peer: Peer) -> None:
    send(peer, letter("ValueError: no"))
    peer.fill("q", "bad")
    delivery = peer.first()[1]
    peer.settle(delivery, Delivery.REJECTED)
    assert len(dead(peer)) == 2
    manage(peer, operation="delete-queue", queue="q.dead", force=True)
    assert not groups(peer)
    assert not records(world)
