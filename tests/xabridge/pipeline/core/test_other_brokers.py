"""These tests write to a broker that is not ours, as a sink of a pipeline: its prepared branch is part of the decision,
also when it is killed and started again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rm_openwire import OpenWireResource
from tests.rm_openwire.java_brokers import Classic
from tests.xabridge.pipeline.core.environment import CoreEnvironment
from xa import FORMAT_ID, TMENDRSCAN, TMONEPHASE, TMSTARTRSCAN, TMSUCCESS, Xid
from xabridge.pipeline.core import AddressTarget, Attempt, Batch, Messages, PipelineError, SinkPlan, SinkReport
from xabridge.pipeline.core.task.sink_task import SinkTask

TARGET = AddressTarget("classic", "called")


@pytest.fixture
def classic(env: CoreEnvironment, tmp_path: Path) -> Iterator[Classic]:
    """ActiveMQ Classic, the resource `classic`."""
    folder = tmp_path / "classic"
    folder.mkdir()
    broker = Classic(folder)
    broker.start()
    env.others = (("classic", broker.url),)
    try:
        yield broker
    finally:
        broker.kill()


def _write(env: CoreEnvironment, plan: SinkPlan, rows: list[str], task: int = 0) -> SinkReport:
    with SinkTask(plan, Attempt(0, task), resources=env.resources) as writing:
        writing.send(TARGET, Messages([row.encode() for row in rows], subject=rows))
        return writing.prepare()


def _received(broker: Classic) -> list[tuple[bytes, str | None]]:
    """Everything in the queue, which is taken; and no branch is left."""
    rm = OpenWireResource()
    rm.open(broker.url, 1)
    assert rm.recover(1, TMSTARTRSCAN | TMENDRSCAN) == []
    xid = Xid(FORMAT_ID, b"look", b"x")
    rm.start(xid, 1)
    found = [(bytes(one.body), one.subject) for one in rm.session(1).receive_batch("called", 100, 1.0)]
    rm.end(xid, 1, TMSUCCESS)
    rm.commit(xid, 1, TMONEPHASE)
    rm.close("", 1)
    return found


@pytest.mark.slow
@pytest.mark.xdist_group("openwire")
@pytest.mark.timeout(300)
def test_classic_is_a_sink(env: CoreEnvironment, classic: Classic) -> None:
    env.put(["1", "2"])
    reader, end, (part,) = env.began(partitions=1)
    writer = env.writer()
    plan = writer.plan()
    rows = env.rows(part)
    _write(env, plan, rows)  # an attempt that Spark does not accept
    report = _write(env, plan, rows, 1)
    classic.kill()
    classic.start()
    assert writer.commit(plan, Batch("q", 0), [report]).left == 0
    assert _received(classic) == [(b"1", "1"), (b"2", "2")]

    env.put(["3"])
    following = reader.latest(end)
    (part,) = reader.plan(end, following)
    plan = writer.plan()
    report = _write(env, plan, env.rows(part))
    writer.abort(plan, Batch("q", 1), [report])
    assert _received(classic) == []
    with pytest.raises(PipelineError, match="only an xabridge broker is read"):
        env.start(env.source("classic"))
        env.joined(env.source("classic")).latest(following)
