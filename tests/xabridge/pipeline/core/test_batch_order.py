"""These tests check that batches become visible in their order, also where a broker of the sink is away when a decided
batch is to be finished there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.rm_amqp.embedded import EmbeddedBroker
from tests.xabridge.pipeline.core.environment import CoreEnvironment
from tm.log import Branch, Decision, LogError
from tm.two_phase.ports import Answer
from tm.two_phase.return_codes import Verb
from xa import Code, xa_error
from xa.coroutines import drive
from xabridge.pipeline.core import AddressTarget, Attempt, Batch, BatchRefused, Offset, SinkPlan, SinkReport
from xabridge.pipeline.core.driver.open_pipeline import BlockingBranches, BlockingLog
from xabridge.pipeline.core.driver.source_planner import SourcePlanner
from xabridge.pipeline.core.protocol import batch_decision, recovery
from xabridge.pipeline.status_command import as_json, summary

CALLED = AddressTarget("second", "called")


@pytest.fixture
def second(env: CoreEnvironment, second: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> EmbeddedBroker:
    """The broker that the sink writes to, which is waited for shortly."""
    env.outage_s = 10.0
    monkeypatch.setattr(recovery, "PAUSES_S", [pause_s / 10 for pause_s in recovery.PAUSES_S])
    return second


def _planned(
    env: CoreEnvironment, reader: SourcePlanner, start: Offset, end: Offset, driver: str = "driver-1"
) -> tuple[SinkPlan, list[str]]:
    """The plan of a batch's sink, and the rows that the batch reads."""
    (part,) = reader.plan(start, end)
    return env.writer(driver).plan(), env.rows(part)


def _written(env: CoreEnvironment, plan: SinkPlan, rows: Sequence[str]) -> SinkReport:
    """What a task has prepared, in a process of its own: it does not know that the broker was away."""
    process = env.beside(env.pipeline)
    report = process.task(plan, Attempt(0, 0), (CALLED, rows))
    process.close()
    return report


def _unfinished(env: CoreEnvironment, second: EmbeddedBroker) -> tuple[SourcePlanner, Offset, SinkReport]:
    """Batch 0 is committed, and its broker is stopped between the decision and phase two. The source, the end of the
    batch, and what its task has prepared."""

    class Log(BlockingLog):
        async def force(self, decision: Decision) -> LogError | None:
            refused = await super().force(decision)
            second.stop()
            return refused

    env.put(["1"])
    reader, first, (part,) = env.began(partitions=1)
    plan = env.writer().plan()
    report = _written(env, plan, env.rows(part))
    pipeline = env.writer()._opened(plan.incarnation)
    log = pipeline.log
    ports = replace(pipeline.ports, log=Log(log._log, log._prefix))
    outcome = drive(batch_decision.commit(ports, pipeline.own, plan, Batch("q", 0), [report], pipeline.names))
    assert (outcome.before, outcome.left) == (False, 1)
    return reader, first, report


def test_a_broker_that_comes_back_between_two_batches_has_them_in_order(
    env: CoreEnvironment, second: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    reader, first, _ = _unfinished(env, second)
    assert "it can't be finished at second now" in caplog.text
    shown = env.shown()
    assert [(epoch.epoch, epoch.unfinished) for epoch in shown.epochs] == [(1, ("second",))]
    assert as_json(shown, 1)["epochs"][0]["unfinished"] == ("second",)
    assert any("epoch 1 is decided, and not finished at second" in told for told in summary(shown))

    env.put(["2"])
    following = reader.latest(first)
    plan, rows = _planned(env, reader, first, following)
    assert plan.unfinished == ("second",)
    second.start()  # after the plan, which could not finish anything there
    report = _written(env, plan, rows)
    assert env.queued("called", second) == []
    assert env.writer().commit(plan, Batch("q", 1), [report]).left == 0
    assert env.queued("called", second) == ["1", "2"]

    env.put(["3"])
    last = reader.latest(following)
    plan, rows = _planned(env, reader, following, last)
    assert plan.unfinished == ()
    env.writer().commit(plan, Batch("q", 2), [_written(env, plan, rows)])
    reader.logged(last)
    assert env.queued("called", second) == ["1", "2", "3"]
    assert env.prepared() == []
    shown = env.shown()
    assert {epoch.unfinished for epoch in shown.epochs} == {()}


def test_a_batch_is_refused_while_an_earlier_one_can_not_be_finished(
    env: CoreEnvironment, second: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not decided, so that it is run again: nobody waits without a word."""
    reader, first, report = _unfinished(env, second)
    second.start()
    env.outage_s = 1.0

    with monkeypatch.context() as patched:
        patched.setattr(BlockingBranches, "ask", _without_answer(*report.branches))
        env.put(["2"])
        following = reader.latest(first)
        plan, rows = _planned(env, reader, first, following)
        report = _written(env, plan, rows)
        with pytest.raises(BatchRefused, match=r"could not be finished \(epoch 1 at second\)"):
            env.writer().commit(plan, Batch("q", 1), [report])
        env.writer().abort(plan, Batch("q", 1), [report])
        assert env.queued("called", second) == []
    plan, rows = _planned(env, reader, first, following)
    env.writer().commit(plan, Batch("q", 1), [_written(env, plan, rows)])
    assert env.queued("called", second) == ["1", "2"]


def _without_answer(branch: Branch) -> Callable[..., Any]:
    """A commit of this branch has no answer, and no effect."""
    whole = BlockingBranches.ask

    async def ask(self: BlockingBranches, verb: Verb, branches: Sequence[Branch]) -> list[Answer]:
        if verb is not Verb.COMMIT_AGAIN or branch not in branches:
            return await whole(self, verb, branches)
        answers = iter(await whole(self, verb, [one for one in branches if one != branch]))
        return [xa_error(Code.XAER_RMFAIL, "the reply is lost") if one == branch else next(answers) for one in branches]

    return ask


def test_a_driver_is_killed_before_phase_two_and_the_next_one_keeps_the_order(
    env: CoreEnvironment, second: EmbeddedBroker
) -> None:
    """The broker is away until the next driver has planned its second batch."""
    env.put(["1"])
    _, first, (part,) = env.began(partitions=1)
    writer = env.writer()
    plan = writer.plan()
    env.decide_and_die(writer, plan, [_written(env, plan, env.rows(part))])
    second.stop()

    reader = env.reader("driver-2", partitions=1)
    plan, rows = _planned(env, reader, Offset(), first, "driver-2")
    assert plan.decided
    assert rows == ["1"]
    repeated = env.writer("driver-2").commit(plan, Batch("q", 0), [env.write(plan, [])])
    assert (repeated.before, repeated.left) == (True, 1)
    env.put(["2"])
    following = reader.latest(first)
    plan, rows = _planned(env, reader, first, following, "driver-2")
    second.start()
    env.writer("driver-2").commit(plan, Batch("q", 1), [_written(env, plan, rows)])
    assert env.queued("called", second) == ["1", "2"]
    reader.logged(following)
    assert env.prepared() == []


def test_a_resource_that_is_not_configured_any_more_holds_up_nobody_else(
    env: CoreEnvironment, second: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """What is left there is told of, and finished once the resource is configured again."""
    reader, first, _ = _unfinished(env, second)
    second.start()
    configured, env.others = env.others, ()

    env.put(["2"])
    reader = env.reader(partitions=1)
    following, decided = env.batch(reader, first, 1)
    assert decided.left == 0
    assert env.queued("alerts") == ["2"]
    assert "not finished at second, which is not configured any more" in caplog.text
    shown = env.shown()
    told = " ".join(summary(shown))
    assert "epoch 1 is decided, and not finished at second" in told
    assert "second: there is no such resource in the configuration" in told
    assert env.queued("called", second) == []

    env.others = configured
    env.put(["3"])
    reader = env.reader(partitions=1)
    plan, rows = _planned(env, reader, following, reader.latest(following))
    assert env.queued("called", second) == ["1"]
    env.writer().commit(plan, Batch("q", 2), [_written(env, plan, rows)])
    assert env.queued("called", second) == ["1", "3"]
