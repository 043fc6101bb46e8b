"""These tests check what a pipeline reports about its state: by `look`, by `xabridge pipeline status`, and by
`xabridge recover`.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rm_amqp import Message
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.xabridge.pipeline.core.environment import CoreEnvironment
from tm.log import LogMissing
from tm.resources import Resource
from xabridge.cli import main
from xabridge.pipeline.core import Attempt, Batch, Offset
from xabridge.pipeline.core.ledger import sql_ledger
from xabridge.pipeline.core.ledger.opener import LedgerOpener
from xabridge.pipeline.core.ledger.status import look, prefixes
from xabridge.pipeline.core.process_ids import process_id
from xabridge.pipeline.core.resources import Resources
from xabridge.pipeline.core.xids import Incarnation
from xabridge.pipeline.status_command import lines, mean_phases, orphans, skipped
from xabridge.testing.ports import free_port

Capture = pytest.CaptureFixture[str]


def status(env: CoreEnvironment, *flags: str) -> int:
    resources = [f"--resource={name}={url}" for name, url in env.settings.resources]
    return main(["pipeline", "status", "--log", env.log, *resources, *flags])


def told(env: CoreEnvironment, capsys: Capture) -> dict[str, Any]:
    capsys.readouterr()
    status(env, "orders", "--json")
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_batch_on_its_way_and_decided(env: CoreEnvironment, capsys: Capture) -> None:
    with pytest.raises(LogMissing):
        prefixes(env.log)
    began_at = time.time()
    env.put(["1", "2"])
    reader, end, partitions = env.began(partitions=1)
    writer, plan, reports = env.written(partitions)
    assert list(prefixes(env.log)) == ["orders"]
    found = env.shown()
    assert (found.driver, found.incarnation) == ("driver-1", plan.incarnation)
    assert (found.query, found.sources) == ("q", (("broker: orders", process_id()),))
    assert [(epoch.epoch, epoch.state, epoch.branches, epoch.phases) for epoch in found.epochs] == [
        (1, "active", 0, {})
    ]
    assert [len(found.prepared[name] or ()) for name in ("broker", "shop")] == [2, 1]
    assert status(env) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"pipeline orders, incarnation {plan.incarnation}"
    assert "  query q, reads broker: orders" in shown
    assert [line for line in shown if line.strip().startswith("1 ") and "active" in line and "broker 2, shop 1" in line]
    assert shown[-1] == "3 branches in doubt on broker and shop"
    assert max(map(len, shown)) <= 80

    writer.commit(plan, Batch("q", 0), reports)
    (decided,) = env.shown().epochs
    assert list(decided.phases) == ["work"]
    whole = told(env, capsys)
    (epoch,), (batch,), (lag,) = whole["epochs"], whole["batches"], whole["lag"]
    did = {name: batch[name] for name in ("gtrid", "batch", "taken", "rows", "messages", "branches", "swept")}
    assert did == {
        "gtrid": epoch["gtrid"], "batch": 0, "taken": 2, "rows": 2, "messages": 2, "branches": 3, "swept": 0,
    }  # fmt: skip
    assert (lag["reads"], lag["messages"], lag["oldest_s"]) == ("broker: orders", 2, None)
    assert (epoch["state"], epoch["logged"], epoch["decided_branches"]) == ("committed", False, 3)
    assert list(epoch["prepared"]) == ["broker"], "the source waits until Spark has logged the batch"

    reader.logged(end)
    (done,) = env.shown().epochs
    assert (done.state, done.branches, done.logged, list(done.phases)) == ("done", 3, True, ["work", "log", "finish"])
    assert done.phases["work"] == decided.phases["work"], "the end of the decision does not hide when it was made"
    assert 0 < sum(done.phases.values()) <= time.time() - began_at + 0.1
    assert done.planned_at == pytest.approx(began_at, abs=5)
    reader.logged(end)
    assert env.shown().epochs == (done,), "told again, and noted once"
    reader.close()
    status(env, "orders")
    shown = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(shown) if line.split()[:2] == ["EPOCH", "TAKEN"])
    assert shown[at + 1].split()[:4] == ["1", "2", "2", "2"]
    assert shown[at + 1].count(" ms") == 3
    assert max(map(len, shown)) <= 80
    assert shown[-1] == "nothing in doubt"
    with pytest.raises(LogMissing):
        look(env.log, (), "other")


def test_brokers_that_were_skipped_are_told(env: CoreEnvironment, capsys: Capture) -> None:
    """With the reason, and in 80 columns."""
    env.outage_s = 0.1
    env.others = (("second", f"amqp://127.0.0.1:{free_port()}/?connect_timeout=1&timeout=1"),)
    env.put(["1", "2", "3"])
    reader, end = env.reader("driver-1", "broker", "second", rows=1, skips=True), Offset()
    for number in range(3):
        end, _ = env.batch(reader, end, number)
    reader.close()
    whole = told(env, capsys)
    for epoch in whole["epochs"]:
        assert list(epoch["skipped"]) == ["second"]
        assert "refused" in epoch["skipped"]["second"]

    assert len(whole["epochs"]) == 3
    status(env, "orders")
    out = capsys.readouterr().out
    assert "epochs 1 to 3 skipped second: second can't be read: " in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
    status(env, "orders", "--last", "1")
    assert "epoch 3 skipped second: " in " ".join(capsys.readouterr().out.split())


def test_the_numbers_and_averages_of_epochs_are_told_in_ranges(env: CoreEnvironment) -> None:
    """One that was planned twice is told once, and a reason that is not known is not told."""
    env.batch(env.reader(), Offset(), 0)
    found = env.shown()
    (one,) = found.epochs
    skipped_by = dict.fromkeys((9, 7, 3, 3, 4, 5), (("b", ""),))
    epochs = [replace(one, epoch=number, skipped=skipped_by.get(number, ())) for number in (9, 8, 7, 3, 3, 4, 5)]
    found = replace(found, epochs=tuple(epochs))
    assert list(skipped(found, 10)) == ["epochs 3 to 5, 7 and 9 skipped b, which was away"]
    assert list(skipped(found, 2)) == ["epoch 9 skipped b, which was away"]

    planned = one.decided_at or 0.0
    slow = replace(one, epoch=1, planned_at=planned - 1000)
    fast = [replace(one, epoch=number, planned_at=planned - 1) for number in range(11, 1, -1)]
    found = replace(found, epochs=(*fast, slow))
    assert mean_phases(found)["work"] == pytest.approx(1), "of the last ten, here and in the console"
    for last in (1, 20):
        shown = " ".join(" ".join(lines(found, last, time.time())).split())
        assert "a batch took on average of epochs 2 to 11: work 1.0 s" in shown


def test_the_lag_of_a_source_over_several_brokers_names_all_of_them(
    env: CoreEnvironment, capsys: Capture, second: EmbeddedBroker
) -> None:
    env.put(["1", "2"])
    env.put(["3"], broker=second)
    reader = env.reader("driver-1", "broker", "second")
    env.batch(reader, Offset(), 0)
    (lag,) = told(env, capsys)["lag"]
    assert (lag["reads"], lag["messages"]) == ("broker: orders; second: orders", 3)
    job = env.reader(streaming=False)
    job.plan_job()
    whole = told(env, capsys)["lag"]
    assert [one["reads"] for one in whole] == ["broker", "broker: orders; second: orders"]


@pytest.mark.parametrize("queues", [("orders",), ("ord*",)])
def test_the_lag_of_a_batch_that_a_killed_driver_has_planned(
    queues: tuple[str, ...], env: CoreEnvironment, capsys: Capture
) -> None:
    """Spark plans it again before it asks for the next one."""
    env.put(["1", "2", "3"])
    _, end, (first, *_) = env.began(queues=queues)
    env.write(env.writer().plan(), env.rows(first), Attempt(0, 0))
    successor = env.reader("driver-2", queues=queues)
    env.batch(successor, Offset(), 0, end=end, driver="driver-2")
    whole = told(env, capsys)
    assert [(lag["epoch"], lag["messages"]) for lag in whole["lag"]] == [(end.epoch, 3)]
    status(env, "orders")
    assert "?" not in capsys.readouterr().out


def test_nothing_is_said_of_what_could_not_be_reached(
    env: CoreEnvironment, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    env.batch(env.reader(), Offset(), 0)
    monkeypatch.delenv("NOWHERE_PASSWORD", raising=False)
    file = tmp_path / "xabridge.toml"
    resources = "".join(f'{name} = "{url}"\n' for name, url in env.settings.resources)
    risk = 'risk = "postgresql://risk:${NOWHERE_PASSWORD}@127.0.0.1/risk"\n'

    def shown(words: str) -> tuple[int, list[str]]:
        file.write_text(f'node = "n"\n[resources]\n{words}\n[pipeline]\nlog = "{env.log}"\n', encoding="utf-8")
        code = main(["pipeline", "status", "orders", "--config", str(file)])
        said = capsys.readouterr()
        return code, [*said.out.splitlines(), *said.err.splitlines()]

    assert "nothing in doubt" in shown(resources)[1]
    code, some = shown(resources + risk)
    assert code == 4
    assert "nothing in doubt" not in some
    assert "nothing in doubt on broker and shop" in some
    assert "it is not known what is in doubt on risk" in some
    code, none = shown(risk)
    assert code == 4
    assert not [line for line in none if line.startswith("nothing in doubt")]
    code, none = shown("")
    assert code == 0
    assert none[-1] == "it is not known what is in doubt: no resource is configured for this command"


def test_orphans_are_told_and_gone_after_the_next_plan(env: CoreEnvironment, capsys: Capture) -> None:
    env.put(["1"])
    reader, end, (partition,) = env.began(partitions=1)
    plan = env.writer().plan()
    env.write(plan, env.rows(partition), Attempt(0, 0))
    ledger = LedgerOpener(env.log, "orders", sleep=time.sleep).join("driver-1")
    ledger.log.abort(plan.gtrid)  # and nobody told the resource managers
    ledger.close()
    assert status(env, "orders") == 3
    shown = capsys.readouterr().out
    assert "3 of them are orphans" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert len(told(env, capsys)["orphans"]) == 1
    reader.plan(Offset(), end)
    assert not told(env, capsys)["orphans"]


def test_what_can_not_be_shown(env: CoreEnvironment, capsys: Capture, tmp_path: Path) -> None:
    assert status(env, "orders") == 1
    assert "there is no decision log here" in capsys.readouterr().err
    env.reader(partitions=1).latest(Offset())
    assert status(env, "order") == 1
    assert "there is no pipeline 'order' here" in capsys.readouterr().err
    gone = "--resource=gone=amqp://127.0.0.1:1/?connect_timeout=1&timeout=1"
    assert status(env, "orders", gone) == 4
    assert "gone could not be reached" in capsys.readouterr().out
    assert main(["pipeline", "status", "orders", "--resource", "shop", "--log", env.log]) == 2
    assert "write NAME=URL" in capsys.readouterr().err
    nowhere = tmp_path / "nowhere.toml"
    assert main(["pipeline", "status", "orders", "--config", str(nowhere)]) == 2
    assert "nowhere.toml" in capsys.readouterr().err


def test_a_batch_that_begins_while_somebody_looks_is_no_orphan(env: CoreEnvironment) -> None:
    env.put(["1", "2"])
    reader = env.reader(partitions=1)
    end, _ = env.batch(reader, Offset(), 0)

    class Meanwhile(Resources):
        """A batch ends and another one begins when the resources are asked."""

        def get(self, name: str, url: str) -> Resource:
            if name == "shop":
                reader.logged(end)
                env.write(env.writer().plan(), ["3"])
            return super().get(name, url)

    opened = Meanwhile()
    (shown,) = look(env.log, env.settings.resources, opened=opened)
    opened.close()
    assert [len(shown.prepared[name] or ()) for name in ("broker", "shop")] == [0, 1], "the old ones are finished"
    assert orphans(shown) == {}


def test_epochs_that_wait_are_there_however_old(env: CoreEnvironment) -> None:
    """The last ones, and what a driver has left behind many batches ago."""
    env.put(["1"])
    reader = env.reader(partitions=1)
    env.batch(reader, Offset(), 0)
    reader.close()
    ledger = LedgerOpener(env.log, "orders", sleep=time.sleep).join("driver-1")
    own = Incarnation("orders", ledger.log.log_id, ledger.log.epoch)
    for number in range(2, 7):
        ledger.log.begin(own.gtrid(number, 1))
        ledger.log.abort(own.gtrid(number, 1))
    ledger.close()
    shown = env.shown(last=2)
    assert [epoch.state for epoch in shown.epochs] == ["aborted", "aborted", "committed"]
    assert len(shown.prepared["broker"] or ()) == 1
    assert orphans(shown) == {}


def test_status_shows_what_the_last_batches_did_and_what_waited(env: CoreEnvironment) -> None:
    reader = env.reader(partitions=2, rows=2)
    start = Offset()
    for number in range(2):
        env.put([f"{number}{digit}" for digit in "abc"])
        start, _ = env.batch(reader, start, number)

    shown = env.shown()
    assert [(one.epoch, one.batch, one.query) for one in shown.results] == [(2, 1, "q"), (1, 0, "q")]
    newest = shown.results[0]
    assert (newest.taken, newest.rows, newest.messages, newest.branches) == (2, 2, 2, 6)
    assert (newest.swept, newest.unfinished) == (0, 0)
    assert newest.octets > 2 * len("1a"), "rows and messages"
    assert min(newest.prepare_s, newest.decide_s, newest.finish_s) > 0
    assert [(lag.epoch, lag.source, lag.waiting) for lag in shown.lags] == [
        (2, "broker: orders", 4), (1, "broker: orders", 3),
    ]  # fmt: skip
    assert [lag.oldest_s for lag in shown.lags] == [None, None], "the sender has not set the creation time"


def test_the_age_of_the_oldest_message_is_by_its_creation_time(env: CoreEnvironment) -> None:
    made_at = time.time() - 60
    env.send([Message("old", creation_time=made_at), Message("new", creation_time=made_at + 30)])
    env.batch(env.reader(partitions=1), Offset(), 0)
    found = env.shown()
    (lag,), (did,) = found.lags, found.results
    assert lag.oldest_s == pytest.approx(60, abs=20)

    for epoch, count, octets, seconds, oldest_s, shown in (
        (1, 2, 34, 0.5, 60.0, "1 2 2 2 34 500 ms 500 ms 500 ms 2, 60 s"),
        (9_999_999, 999_999, 10**9 - 1, 9.9, 119.0, "999999 999999 999 MB 9900 ms 9900 ms 9900 ms 999 k, 119 s"),
        (7, 12_345_678, 10**11, 119.0, 8e6, "12 M 12 M 12 M 100 GB 119.0 s 119.0 s 119.0 s 12 M, 92 d"),
    ):
        result = replace(
            did, epoch=epoch, taken=count, rows=count, messages=count, octets=octets,
            prepare_s=seconds, decide_s=seconds, finish_s=seconds,
        )  # fmt: skip
        told = replace(found, results=(result,), lags=(replace(lag, waiting=count, oldest_s=oldest_s),))
        table = list(lines(told, 1, time.time()))
        assert max(map(len, table)) <= 80
        assert [line for line in table if " ".join(line.split()).endswith(shown)]


def test_only_the_last_results_are_kept_and_a_job_has_one_too(
    env: CoreEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_ledger, "KEEP_RESULTS", 2)
    for number in range(4):
        env.put([str(number)])
        job = env.reader(streaming=False, partitions=1)
        parts = job.plan_job()
        writer = env.writer()
        plan = writer.plan(streaming=False)
        writer.commit(plan, None, env.tasks(plan, parts))
        job.close()
    shown = env.shown()
    assert [(one.epoch, one.batch, one.taken) for one in shown.results] == [(4, None, 1), (3, None, 1)]


def test_recover_shows_a_pipelines_branches_as_such(env: CoreEnvironment, capsys: Capture, tmp_path: Path) -> None:
    env.put(["1"])
    _, _, (partition,) = env.began(partitions=1)
    plan = env.writer().plan()
    env.write(plan, env.rows(partition), Attempt(0, 7))
    config = tmp_path / "site.toml"
    resources = "\n".join(f'{name} = "{url}"' for name, url in env.settings.resources)
    config.write_text(f'node = "site"\nlog = "file://{tmp_path}/log"\n[resources]\n{resources}\n')

    assert main(["recover", "list", "--node", "orders", "--config", str(config)]) == 3
    capsys.readouterr()
    assert main(["recover", "list", "--config", str(config)]) == 0, "they are another node's"
    shown = capsys.readouterr().out
    assert "pipeline orders, epoch 1: its own log decides" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80
    (name,) = (line for line in _run("recover", "list", "--names", "--config", str(config), capsys=capsys).splitlines())
    details = " ".join(_run("recover", "show", name, "--config", str(config), capsys=capsys).split())
    assert "made by pipeline orders, epoch 1" in details
    assert "messages that source partition 0 took" in details
    assert "rows and messages that task 7 wrote as partition 0" in details
    assert "xabridge pipeline status orders" in details
    assert "left alone: belongs to node orders" in _run("recover", "run", "--config", str(config), capsys=capsys)
    assert len(told(env, capsys)["epochs"][0]["prepared"]["broker"]) == 2, "left alone"


def _run(*arguments: str, capsys: Capture) -> str:
    capsys.readouterr()
    main(list(arguments))
    return capsys.readouterr().out
