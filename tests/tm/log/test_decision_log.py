"""These tests check what `DecisionLog` promises, on each kind of log, opened as the transaction manager opens it."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.tm.log.killed import opened
from tests.tm.log.samples import decision, heuristic
from tm.log import Branch, Decision, Heuristic, LogStopped
from tm.log.backup import back_up
from tm.log.factory import folder_of, look_at_log, open_log
from tm.log.incarnations import IncarnationState
from tm.log.sql.backup import back_up_sql
from xa import NULL_XID, Code


def test_decisions_are_there_when_the_log_is_opened_again(log_url: str, node: str) -> None:
    log = open_log(log_url, node)
    first = [decision(sequence, branches=sequence, node=node) for sequence in range(5)]
    for made in first:
        log.decide(made)
    assert list(log.decisions()) == first
    for _ in range(2):
        log.end(first[1].gtrid)
        assert list(log.decisions()) == [first[0], *first[2:]]
        assert log.decision(first[1].gtrid) is None

    log.end(decision(99, node=node).gtrid)
    log.close()
    log = open_log(log_url, node)
    assert list(log.decisions()) == [first[0], *first[2:]]
    assert log.decision(first[3].gtrid) == first[3]
    assert log.decision(first[1].gtrid) is None
    assert log.decision(decision(99, node=node).gtrid) is None
    log.close()


@pytest.mark.slow
def test_many_threads_decide_and_many_ends_are_written_before_the_log_is_closed(log_url: str, node: str) -> None:
    """Segments are small, so that a FileLog moves on all the time, and somebody looks from inside and outside."""
    log = opened(log_url, node)
    enough = 700 if log_url.startswith("file:") else 150
    stuck, *many = (decision(sequence, 1 + sequence % 4, node=node) for sequence in range(enough))
    log.decide(stuck)

    def work(made: Decision) -> None:
        log.decide(made)
        assert log.decision(made.gtrid) == made
        log.note_heuristic(Heuristic(made.branches[0], Code.XA_HEURRB))
        log.drop_heuristic(made.branches[0])

    with ThreadPoolExecutor(32) as executor:
        deciding = [executor.submit(work, made) for made in many]
        while not all(done.done() for done in deciding):
            assert stuck in log.decisions()
            assert stuck in look_at_log(log_url, node).decisions
        for done in deciding:
            done.result()
        assert {each.gtrid: each for each in log.decisions()} == {each.gtrid: each for each in (stuck, *many)}
        assert list(log.heuristics()) == []
        list(executor.map(lambda made: log.end(made.gtrid), (stuck, *many)))
    assert len(look_at_log(log_url, node).decisions) < enough - 50
    log.close()
    assert look_at_log(log_url, node).decisions == ()


def test_heuristic_outcomes_stay_until_they_are_dropped(log_url: str, node: str) -> None:
    one, other = heuristic(1, node=node), heuristic(2, Code.XA_HEURMIX, node=node)
    log = open_log(log_url, node)
    log.note_heuristic(one)
    log.note_heuristic(other)
    log.note_heuristic(one)
    log.drop_heuristic(heuristic(3, node=node).branch)
    assert list(log.heuristics()) == [one, other]
    log.close()

    log = open_log(log_url, node)
    assert list(log.heuristics()) == [one, other]
    log.drop_heuristic(one.branch)
    assert list(log.heuristics()) == [other]
    log.close()
    log = open_log(log_url, node)
    assert list(log.heuristics()) == [other]
    log.drop_heuristic(other.branch)
    log.close()


def test_a_log_keeps_its_id_and_has_an_incarnation_for_each_opening(log_url: str, node: str) -> None:
    seen = []
    for _ in range(3):
        log = open_log(log_url, node)
        seen.append((log.node, log.log_id, log.incarnation))
        assert log.incarnations.noted[log.incarnation] is IncarnationState.OPEN
        assert look_at_log(log_url, node).incarnations.noted[log.incarnation] is IncarnationState.OPEN, (
            "noted before it is told"
        )
        assert log.held()
        log.close()

    assert {len(incarnation) for _, _, incarnation in seen} == {8}
    assert len({incarnation for _, _, incarnation in seen}) == 3
    assert {(name, log_id) for name, log_id, _ in seen} == {(node, seen[0][1])}
    assert len(seen[0][1]) == 8
    image = look_at_log(log_url, node)
    assert list(image.incarnations.noted.items()) == [
        (incarnation, IncarnationState.WHOLE) for _, _, incarnation in seen
    ]
    assert image.openings == 3


def test_it_presumes_about_what_it_has_noted_and_about_nothing_else(log_url: str, node: str) -> None:
    first = open_log(log_url, node)
    first.close()
    log = open_log(log_url, node)
    why_not = log.incarnations.why_not
    assert (why_not(first.incarnation), why_not(log.incarnation)) == (None, None)
    assert "ffffffffffffffff, which is not noted" in str(why_not(b"\xff" * 8))
    assert "a pipeline made it" in str(why_not(1))
    for incarnation in (first.incarnation, log.incarnation, b"\xff" * 8):
        with pytest.raises(ValueError, match="was not at work when this copy of the log was made"):
            log.trust(incarnation)
    log.close()


def test_each_incarnation_keeps_its_last_floor(log_url: str, node: str, tmp_path: Path) -> None:
    """A floor is noted with what is written anyway, and by nothing else."""
    first = open_log(log_url, node)
    first.note_floor(1)
    assert first.incarnations.floors.get(first.incarnation, 0) <= 1
    first.note_floor(7)
    first.note_floor(5)
    assert first.incarnations.floors[first.incarnation] == 7
    assert look_at_log(log_url, node).incarnations.floors.get(first.incarnation, 0) == 0, "nothing was forced for it"
    for sequence in range(100):
        first.decide(decision(sequence, node=node))
        first.end(decision(sequence, node=node).gtrid)
    assert look_at_log(log_url, node).incarnations.floors[first.incarnation] == 7
    first.note_floor(200)
    first.close()

    second = open_log(log_url, node)
    second.note_floor(3)
    second.close()
    third = open_log(log_url, node)
    floors = {incarnation: floor for incarnation, floor in third.incarnations.floors.items() if floor > 1}
    assert floors == {first.incarnation: 200, second.incarnation: 3}
    third.close()
    if not log_url.startswith("postgresql"):
        folder = folder_of(log_url)
        if folder is not None:
            back_up(folder, tmp_path / "copy")
        else:
            back_up_sql(log_url, node, tmp_path / "copy")
        scheme = log_url.partition(":")[0]
        copied = look_at_log(f"{scheme}://{'/' * (folder is None)}{tmp_path}/copy", node).incarnations.floors
        assert {one: copied[one] for one in floors} == floors


def test_a_closed_log_writes_and_tells_nothing(log_url: str, node: str, caplog: pytest.LogCaptureFixture) -> None:
    log = open_log(log_url, node)
    log.decide(decision(1, node=node))
    log.close()
    log.close()
    with caplog.at_level(logging.CRITICAL):
        log.end(decision(1, node=node).gtrid)

    for call in (
        lambda: log.decide(decision(2, node=node)),
        lambda: log.note_heuristic(heuristic(2, node=node)),
        lambda: log.drop_heuristic(heuristic(2, node=node).branch),
        log.decisions,
        log.heuristics,
        lambda: log.decision(decision(1, node=node).gtrid),
    ):
        with pytest.raises(LogStopped, match="closed"):
            call()
    assert look_at_log(log_url, node).decisions == (decision(1, node=node),)


def test_a_look_disturbs_nobody_and_changes_nothing(log_url: str, node: str, tmp_path: Path) -> None:
    log = open_log(log_url, node)
    log.decide(decision(1, node=node))
    log.note_heuristic(heuristic(2, node=node))
    written = {path: path.read_bytes() for path in tmp_path.rglob("segment*")}
    image = look_at_log(log_url, node)
    assert {path: path.read_bytes() for path in tmp_path.rglob("segment*")} == written
    assert (image.node, image.log_id, image.incarnations) == (node, log.log_id, log.incarnations)
    assert image.decisions == (decision(1, node=node),)
    assert image.heuristics == (heuristic(2, node=node),)
    log.decide(decision(2, node=node))
    log.close()


@pytest.mark.parametrize(
    "wrong",
    [
        Decision(b"g", (Branch("n" * 256, decision(1).branches[0].xid),)),
        Decision(b"g", (Branch("shop", NULL_XID),)),
        Decision(b"g" * 65, ()),
        Decision(b"", ()),
    ],
)
def test_what_can_be_no_decision_is_refused_and_harms_nobody(log_url: str, node: str, wrong: Decision) -> None:
    log = open_log(log_url, node)
    with pytest.raises(ValueError):
        log.decide(wrong)
    log.decide(decision(1, node=node))
    assert list(log.decisions()) == [decision(1, node=node)]
    log.close()


def test_a_node_id_that_can_be_none_makes_no_log(log_url: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="node id"):
        open_log(log_url, "not a node")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("/var/lib/log", "is not a URL"),
        ("file://var/lib/log", "three slashes"),
        ("sqlite://", "in memory keeps no decisions"),
        ("sqlite:///:memory:", "in memory keeps no decisions"),
        ("mysql://db/log", "PostgreSQL or SQLite"),
    ],
)
def test_a_url_that_names_no_log_is_refused(url: str, why: str) -> None:
    for call in (open_log, look_at_log):
        with pytest.raises(ValueError, match=why):
            call(url, "orders-1")
