"""These tests cover the content of tokens: decisions, generations, fences and message bodies."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from rm_amqp.decider.tokens import (
    KEPT_LEASES,
    MAX_FENCES,
    MAX_LEASES,
    MAX_OCTETS,
    FoundingMessage,
    Lease,
    Token,
    TokenAnswer,
    TooManyLeasesError,
    WrongTokenError,
)
from tests.cases import each
from xa import Owner
from xa.gtrid import OVER

FOUNDER = b"founder!"
FOUNDING = FoundingMessage(FOUNDER, 8)
TOKEN = Token(FOUNDER, 3)
OWNER = Owner("orders-1", b"12345678", "boot 1 pid 2")


def test_a_body_says_what_was_said() -> None:
    token = TOKEN.deciding(b"g\0\xff", b"\1\2", ()).fencing(b"h").holding(Lease(OWNER, 9000), 8000)
    assert Token.decode(token.encode()) == token
    assert FoundingMessage.decode(FOUNDING.encode()) == FOUNDING


@pytest.mark.parametrize(
    "change",
    [
        lambda token: token.deciding(b"g", b"r", ()),
        lambda token: token.fencing(b"h"),
        lambda token: token.ending({b"g"}),
        lambda token: token.holding(Lease(OWNER, 9000), 8000),
        lambda token: token.holding(Lease(OWNER, 0), 8000),
        Token.renewed,
    ],
)
def test_every_change_is_a_new_generation(change: Callable[[Token], Token]) -> None:
    assert change(change(TOKEN)).generation == 2


def test_decisions_stay_until_they_end() -> None:
    token = TOKEN.deciding(b"1", b"one", ()).deciding(b"2", b"two", ()).deciding(b"3", b"three", {b"1"})
    assert token.decided == ((b"2", b"two"), (b"3", b"three"))
    assert token.word_on(b"2", 0) is TokenAnswer.DECIDED
    assert token.record_of(b"3") == b"three"
    assert token.record_of(b"1") is None


def test_a_fence_ends_with_its_transaction() -> None:
    token = TOKEN.fencing(b"1").fencing(b"2").ending({b"1"})
    assert token.word_on(b"1", 0) is TokenAnswer.OPEN
    assert token.word_on(b"2", 0) is TokenAnswer.FENCED
    assert token.epoch == 2


def test_old_fences_are_kept_by_their_epoch() -> None:
    token = TOKEN
    for number in range(MAX_FENCES + 5):
        token = token.fencing(f"{number}".encode())
    assert len(token.fenced) == MAX_FENCES
    assert token.word_on(b"4", 4) is TokenAnswer.OUTDATED, "it was fenced while the slot was at epoch 4"
    assert token.word_on(b"5", 0) is TokenAnswer.FENCED
    assert token.word_on(b"another", 4) is TokenAnswer.OUTDATED, "nobody knows any more whether it was"
    assert token.word_on(b"another", 5) is TokenAnswer.OPEN, "it began when the first five were there already"


@each("known", range(MAX_FENCES + 3))
def test_no_fence_is_ever_missed(known: int) -> None:
    """One that is fenced after it began, at whatever epoch, is refused for ever."""
    token = TOKEN
    for number in range(known):
        token = token.fencing(f"before {number}".encode())
    token = token.fencing(b"it")
    for number in range(3 * MAX_FENCES):
        assert token.word_on(b"it", known) is not TokenAnswer.OPEN
        token = token.fencing(f"after {number}".encode())


def test_slots_are_used_alike() -> None:
    used = Counter(FOUNDING.slot_of(f"node 1 {number}".encode()) for number in range(8000))
    assert set(used) == set(range(8))
    assert min(used.values()) > 800
    assert FOUNDING.lease_slot not in used


def test_the_first_tokens_hold_nothing() -> None:
    tokens = FOUNDING.first_tokens()
    assert [token.slot for token in tokens] == list(range(9))
    assert all(token.generation == 0 and token.founder == FOUNDER for token in tokens)


@pytest.mark.parametrize(
    "body",
    [
        None,
        b"{}",
        {},
        "",
        "{",
        "[]",
        '{"version": 3}',
        TOKEN.encode().replace('"version": 3', '"version": "3"'),
        TOKEN.encode().replace('"version": 3', '"version": 2'),
        TOKEN.encode().replace('"version": 3', '"version": 4'),
        TOKEN.encode().replace(', "leases": []', ""),
        TOKEN.encode().replace('"leases": []', '"leases": [["n", "00", "p"]]'),
        TOKEN.encode().replace('"leases": []', '"leases": [["n", "00", "p", "1"]]'),
        TOKEN.encode().replace('"leases": []', '"leases": [["n", "no hex", "p", 1]]'),
        TOKEN.encode().replace('"leases": []', '"leases": [[1, "00", "p", 1]]'),
        TOKEN.encode().replace('"slot": 3', '"slot": -3'),
        TOKEN.encode().replace('"slot": 3', '"slot": "3"'),
        TOKEN.encode().replace('"slot": 3, ', ""),
        TOKEN.encode().replace('"decided": []', '"decided": [["0"]]'),
        TOKEN.encode().replace('"decided": []', '"decided": [["zz", "00"]]'),
        TOKEN.encode().replace('"fenced": []', '"fenced": 1'),
        TOKEN.encode().replace(FOUNDER.hex(), "no hex"),
    ],
)
def test_what_is_no_token(body: object) -> None:
    with pytest.raises(WrongTokenError):
        Token.decode(body)


def test_leases() -> None:
    """Each owner has one; it is renewed and ended, and it runs out. What it has noted stays."""
    other = Owner("orders-1", b"87654321", "a process")
    token = TOKEN.holding(Lease(OWNER, 2000), 1000).holding(Lease(other, 1500, 3, 9, 1000), 1000)
    token = token.holding(Lease(OWNER, 3000), 1200)
    assert {lease.owner: lease.until_ms for lease in token.running(1200)} == {OWNER: 3000, other: 1500}
    assert [lease.owner for lease in token.running(1500)] == [OWNER]
    token = token.holding(Lease(OWNER, 4000), 1500)
    assert token.leases == (Lease(replace(other, process=""), 0, 3, 9, 1000), Lease(OWNER, 4000))
    assert [lease.owner for lease in token.holding(Lease(OWNER, 1600), 1600).running(1600)] == []
    assert len(token.holding(Lease(OWNER, 1600), 1600).leases) == 2
    assert len(token.holding(Lease(Owner("orders-1", b"never", ""), 0), 1600).leases) == 2
    over = token.holding(Lease(replace(other, process=""), 0, OVER, OVER, 1600), 1600)
    assert [lease.owner for lease in over.leases] == [OWNER]
    assert token.holding(Lease(other, 1700, 3, 9), 1600).running(1600)[-1].owner == other, "it had only seemed dead"


def test_of_leases_that_have_ended_the_latest_are_kept() -> None:
    owners = [Owner("n" * 32, number.to_bytes(8), "p" * 100) for number in range(KEPT_LEASES + 10)]
    leases = [Lease(owner, number + 2, 1, 17, number) for number, owner in enumerate(owners)]
    token = replace(TOKEN, leases=tuple(leases[: KEPT_LEASES - 10]))
    for lease in leases[KEPT_LEASES - 10 :]:
        token = token.holding(lease, lease.until_ms - 1)
    token = token.holding(Lease(OWNER, 2**41), 2**40)
    kept = [int.from_bytes(lease.owner.incarnation) for lease in token.leases[:-1]]
    assert kept == list(range(10, KEPT_LEASES + 10))
    assert Token.decode(token.encode()) == token


def test_there_are_not_more_leases_than_a_message_can_hold() -> None:
    owners = [Owner("n" * 32, number.to_bytes(8), "p" * 100) for number in range(MAX_LEASES)]
    token = replace(TOKEN, leases=tuple(Lease(owner, 2**41) for owner in owners[:-10]))
    for owner in owners[-10:]:
        token = token.holding(Lease(owner, 2**41), 0)
    with pytest.raises(TooManyLeasesError, match="1000 processes"):
        token.holding(Lease(OWNER, 2**41), 0)
    one = token.leases[500].owner
    assert len(token.holding(Lease(one, 2**42), 0).leases) == MAX_LEASES, "who has one renews it"
    assert len(token.holding(Lease(OWNER, 2**42), 2**41).running(2**41)) == 1, "when they have run out there is room"
    assert len(token.encode()) < MAX_OCTETS


@pytest.mark.parametrize("wrong", [{"slots": 0}, {"slots": 65}, {"slots": True}, {"founder": "00"}, {"founder": None}])
def test_what_is_no_founding(wrong: dict[str, object]) -> None:
    with pytest.raises(WrongTokenError):
        FoundingMessage.decode(json.dumps(json.loads(FOUNDING.encode()) | wrong))


def test_whose_place_it_is() -> None:
    TOKEN.check(FOUNDING, 3)
    Token(b"another!", 3).check(FOUNDING, 3)  # it was never used
    with pytest.raises(WrongTokenError, match="slot 3"):
        TOKEN.check(FOUNDING, 4)
    with pytest.raises(WrongTokenError, match=b"another!".hex()):
        Token(b"another!", 3).renewed().check(FOUNDING, 3)
