"""These tests run poison rows, bad messages and outages, and check what the next batch reads, what is counted, and what
becomes a dead letter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rm_amqp import AmqpResource, Message
from tests.xabridge.pipeline.core.environment import ALERTS, DELIVERIES, TABLE, CoreEnvironment
from xabridge.pipeline.core import Attempt, Batch, BatchRefused, Messages, Offset, PipelineError, SinkPlan, SinkReport
from xabridge.pipeline.core.protocol.isolation import EXCUSED, Isolation
from xabridge.pipeline.core.task.sink_task import SinkTask
from xabridge.pipeline.core.task.source_task import read


def bad(message: Mapping[str, object]) -> str:
    """A function for the option bad_records."""
    return "it says so" if message["body"] == "bad" else ""


class _Query:
    """A query that is started again whenever it fails, as a supervisor does."""

    def __init__(
        self, env: CoreEnvironment, write: Callable[[CoreEnvironment, SinkPlan, list[str], Attempt], SinkReport]
    ) -> None:
        self._env = env
        self._write = write
        self.start, self.end, self.number = Offset(), Offset(), 0
        self.failures = 0
        self.sizes: list[int] = []

    def run(self, tries: int = 1, **source: Any) -> None:
        """So many batches at most, as long as there is something to read."""
        env = self._env
        reader = env.reader(**source)
        for _ in range(tries):
            if self.end == self.start and (found := reader.latest(self.start)) == self.start:
                break
            self.end = found if self.end == self.start else self.end
            partitions = reader.plan(self.start, self.end)
            writer = env.writer()
            plan = writer.plan()
            reports: list[SinkReport] = []
            batch = Batch("q", self.number)
            try:
                rows = [env.rows(partition) for partition in partitions]
                self.sizes.append(sum(map(len, rows)))
                reports += [self._write(env, plan, one, Attempt(at, at)) for at, one in enumerate(rows)]
                writer.commit(plan, batch, reports)
            except (PipelineError, ValueError):
                missing = len(partitions) - len(reports)
                writer.abort(plan, batch, [*reports, *[None] * missing])
                self.failures += 1
            else:
                self.start, self.number = self.end, self.number + 1
            writer.close()

        reader.logged(self.start)
        reader.close()


def _user_code(env: CoreEnvironment, plan: SinkPlan, rows: list[str], attempt: Attempt) -> SinkReport:
    """A row that the user's code fails on, before anything is written."""
    if "poison" in rows:
        raise ValueError("poison")
    return env.write(plan, rows, attempt)


@pytest.mark.parametrize(
    ("write", "places"),
    [
        pytest.param(_user_code, (11,), marks=pytest.mark.long),
        (CoreEnvironment.write, (4, 5)),
        pytest.param(CoreEnvironment.write, (0,), marks=pytest.mark.long),
        pytest.param(_user_code, (23,), marks=pytest.mark.long),
    ],
)
def test_a_poison_row_is_found_and_nothing_else_is_dead_lettered(
    env: CoreEnvironment,
    write: Callable[[CoreEnvironment, SinkPlan, list[str], Attempt], SinkReport],
    places: tuple[int, ...],
) -> None:
    if write is not _user_code:
        env.change("ALTER TABLE orders ADD CHECK (body <> 'poison')")
    rows = ["poison" if number in places else f"{number}" for number in range(24)]
    env.put(rows)
    query = _Query(env, write)
    for _ in range(300):
        query.run()
        if len(env.queued("orders.dead")) == len(places):
            break
        env.put([f"more {query.number}"] if len(env.queued()) < 3 else [])  # a pipeline goes on

    query.run(20)
    good = [row for row in rows if row != "poison"]
    assert [row for row in env.table() if "more" not in row] == good
    assert [row for row in env.queued("alerts") if "more" not in row] == good
    assert env.queued("orders.dead") == ["poison"] * len(places)
    assert env.counts("orders.dead") == [DELIVERIES] * len(places)
    assert [count for count in env.counts() if count] == []
    assert env.prepared() == []
    assert query.failures < 15 * len(places)


def test_a_poison_row_alone_is_not_counted_as_nothing_is_proven(env: CoreEnvironment) -> None:
    env.put(["poison"])
    query = _Query(env, _user_code)
    for _ in range(5):
        query.run()
    assert env.counts() == [0]
    assert env.queued("orders.dead") == []


def test_a_resource_that_is_away_changes_no_count_and_no_batch(env: CoreEnvironment) -> None:
    """The sink's task says that no message is to blame; where it can't, the driver sees what is away."""

    def away(env: CoreEnvironment, plan: SinkPlan, rows: list[str], attempt: Attempt) -> SinkReport:
        with SinkTask(plan, attempt, resources=env.resources) as task:
            task.send(ALERTS, Messages([row.encode() for row in rows]))
            raise BatchRefused(f"shop is away: {TABLE.table}")

    env.put([f"{number}" for number in range(24)])
    query = _Query(env, away)
    for _ in range(5):
        query.run()
    assert query.sizes == [24] * 5
    assert env.counts() == [0] * 24
    assert env.prepared() == []


def test_messages_that_can_not_be_read_and_those_named_bad_are_left_out_and_counted(env: CoreEnvironment) -> None:
    env.put(["0", "\ud800", "bad", "1"], errors="surrogatepass")
    query = _Query(env, CoreEnvironment.write)
    query.run(DELIVERIES - 1, text=True, bad_records=f"{__name__}:bad")
    assert env.table() == ["0", "1"]
    assert env.counts() == [DELIVERIES - 1] * 2
    assert env.queued("orders.dead") == []
    query.run(2, text=True, bad_records=f"{__name__}:bad")
    assert len(env.queued("orders.dead")) == 2
    assert env.counts() == []
    assert query.failures == 0


def _properties(env: CoreEnvironment, queue: str) -> list[tuple[bytes, str]]:
    rm = AmqpResource()
    rm.open(f"amqp://{env.broker.address}/", 1)
    messages = [Message.from_octets(octets) for page in rm._read(queue, 1, 1000, None) for octets in page]
    rm.close("", 1)
    return [(bytes(message.body), (message.properties or {})["bad_reason"]) for message in messages]


@pytest.mark.parametrize("again", ["no", "by the task", "by the next driver", "broker restarted"])
def test_bad_messages_are_sent_to_an_address_under_the_same_decision(env: CoreEnvironment, again: str) -> None:
    env.put(["0", "\ud800", "bad", "1"], errors="surrogatepass")
    options: dict[str, Any] = {"text": True, "bad_records": f"{__name__}:bad", "bad_address": "sorted out"}
    reader, end, parts = env.began(**options)
    told = [env.rows(part) for part in parts]
    assert env.queued("sorted out") == [], "before the decision nobody sees them"
    if again == "by the next driver":  # the first one dies before the decision: everything goes back
        reader = env.reader("driver-2", **options)
        parts = reader.plan(Offset(), end)
    if again == "broker restarted":
        env.broker.stop()
        env.broker.start()

    if again != "no":
        told = [env.rows(part) for part in parts]
    assert sorted(row for rows in told for row in rows) == ["0", "1"]
    driver = "driver-2" if again == "by the next driver" else "driver-1"
    assert not env.finish(parts, 0, driver=driver).before
    assert reader.latest(end) == end
    assert sorted(env.table()) == ["0", "1"]
    (first, named), (second, unreadable) = sorted(_properties(env, "sorted out"))
    assert (first, named) == (b"bad", "it says so")
    assert second == "\ud800".encode(errors="surrogatepass")
    assert "it can't be read" in unreadable
    assert env.queued() == env.queued("orders.dead") == env.prepared() == []


def test_bad_messages_are_rows(env: CoreEnvironment) -> None:
    env.put(["0", "\ud800", "bad", "1"], errors="surrogatepass")
    _, _, (part,) = env.began(text=True, bad_records=f"{__name__}:bad", keep_bad=True, partitions=1)
    for _ in range(2):  # the second time from the prepared branch
        (chunk,) = read(part, resources=env.resources)
        assert list(chunk.body) == ["0", None, None, "1"]
        assert chunk.bad is not None
        unreadable, named = chunk.bad[1], chunk.bad[2]
        assert unreadable is not None
        assert unreadable[0] == "\ud800".encode(errors="surrogatepass")
        assert "it can't be read" in unreadable[1]
        assert named == (b"bad", "it says so")
        assert [chunk.bad[0], chunk.bad[3]] == [None, None]


@given(poison=st.integers(0, 999), size=st.integers(1, 1000))
def test_halving_finds_one_of_a_thousand_in_a_dozen_tries(poison: int, size: int) -> None:
    queue = list(range(size))
    isolation = Isolation(b"")
    failures = 0
    for _ in range(100):
        batch = queue[: isolation.share(1000)]
        told = batch[isolation.aside :]
        if not queue or isolation.aside:
            break
        failed = poison in told
        failures += failed
        queue = queue if failed else queue[len(batch) :]
        tried = Isolation(b"", isolation.suspects, isolation.aside, len(batch) if failed else -1)
        isolation = tried.following(b"", decided=not failed)
    assert queue[:1] == ([poison] if poison < size else [])
    assert failures <= 12


def test_an_excused_failure_changes_nothing_of_what_is_read_next() -> None:
    for suspects, aside in ((0, 0), (7, 0), (1, 0), (1, 3)):
        before = Isolation(b"a", suspects, aside, EXCUSED)
        assert before.following(b"b", decided=False) == Isolation(b"b", suspects, aside)
