"""These tests cover xabridge doctor: what it checks, how it tells the user to correct a problem, and that it changes
nothing.
"""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, update

from dtx.broker.access.permissions import ANONYMOUS, Coordination, Rule
from rm_amqp import AmqpResource, Message
from rm_amqp.management import ManagementClient
from tests.xabridge.cli.field import NAME, OTHER_LOG, Field, Xabridge, xid_of
from tm.log import Branch, Heuristic
from tm.log.folder_check import examine_folder, file_system_of
from xa import TMSUCCESS, Code
from xa.diagnosis import Check, Diagnosis, Health
from xa.telemetry.conditions import CLOCK_OFF
from xabridge.cli.doctor import lines
from xabridge.operations.diagnosis import SubjectCheck, examine_survey
from xabridge.operations.recovery_pass import PassPreview
from xabridge.operations.survey import Survey
from xabridge.outbox import Outbox
from xabridge.outbox.tables import Tables
from xabridge.testing.in_process import TestBroker


def checks(xabridge: Xabridge) -> dict[tuple[str, str], dict[str, Any]]:
    """Each check by what it is of and what it checks; kinds of disk are the machine's."""
    value = json.loads(xabridge("doctor", "--json").out)
    return {(check["of"], check["check"]): check for check in value["checks"] if check["check"] != "disk"}


def test_all_is_well_and_left_as_it_was(field: Field, xabridge: Xabridge) -> None:
    xabridge("doctor")
    assert not field.log_folder.exists()
    field.open_log().close()
    before = field.log_files()
    found = checks(xabridge)
    assert field.log_files() == before
    assert not list(field.folder.glob("doctor*"))
    assert {check["health"] for check in found.values()} == {"ok"}, found

    assert found.keys() == {
        ("config", "configuration"),
        ("log", "folder"),
        ("log", "content"),
        ("broker", "reachable"),
        ("shop", "reachable"),
        ("decisions", "decisions"),
        ("orphans", "orphans"),
        ("node", "node id"),
        ("clock", "clock"),
    }
    assert found["log", "content"]["found"] == "log abababababababab, opened 1 time"
    assert found["decisions", "decisions"]["found"] == "none is open"


def test_decisions_are_counted_as_list_counts_them(field: Field, xabridge: Xabridge) -> None:
    """One whose branch is in doubt, and two that are carried out and whose end was not noted."""
    for number in (1, 2, 3):
        field.decide(field.gtrid(number), "broker", "shop")
    field.prepare("shop", field.gtrid(2))
    told = "1 of transactions in doubt and 2 without a branch anywhere, which the next recovery pass ends"
    assert checks(xabridge)["decisions", "decisions"]["found"] == f"3 decisions open: {told}"
    said = " ".join(xabridge("recover", "list").out.split())
    assert "1 transaction in doubt on" in said
    assert said.endswith(
        "2 decisions more have no branch left anywhere; the next recovery pass says what is known, and ends that if "
        "there is nothing to note, or a log to note it in"
    )
    value = json.loads(xabridge("recover", "list", "--json").out)
    assert (value["open_decisions"], value["carried_out"]) == (1, 2)
    assert xabridge("recover", "run").code == 0
    assert checks(xabridge)["decisions", "decisions"]["found"] == "none is open"


def test_for_people(field: Field, xabridge: Xabridge) -> None:
    field.open_log().close()
    field.configure("broker", urls=[("a-name-that-is-long", field.url("shop", socket="nowhere"))])
    said = xabridge("doctor")
    assert said.code == 1
    assert "ok    broker     reference://broker, in this machine's memory\n" in said.out
    assert "fail  a-name-that-is-long\n" in said.out
    assert (
        "                 start the process that serves it\n                 condition: resource-unreachable\n"
        in said.out
    )
    assert said.out.splitlines()[-1].endswith(", 1 fail")
    assert max(map(len, said.out.splitlines())) <= 80


def test_a_configuration_that_is_no_good(field: Field, xabridge: Xabridge) -> None:
    field.config.write_text("nodes = 1\n")
    said = xabridge("doctor")
    assert said.code == 1
    assert "fail config /field/xabridge.toml: nodes: unknown key; known are" in said.words
    field.config.write_text('node = "n"\nlog = "file:///tmp/x"\n[resources]\na = "gopher://x"\n')
    assert "registered for gopher://" in xabridge("doctor").words
    field.config.write_text('node = "n"\n')
    found = checks(xabridge)
    assert found["log", "place"]["health"] == "fail", "nobody decides"
    assert found["config", "configuration"]["health"] == "warn"


def test_the_folder_of_a_log(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("overlay / overlay rw 0 0\ntmpfs /var/a\\040b tmpfs rw 0 0\n/dev/sda1 /var ext4 rw 0 0\n")
    assert file_system_of(Path("/var/lib/log"), mounts) == "ext4"
    assert file_system_of(Path("/var/a b/log"), mounts) == "tmpfs"
    assert file_system_of(Path("/srv"), mounts) == "overlay"
    assert file_system_of(tmp_path, tmp_path / "nothing") is None
    if os.geteuid() != 0:  # root may write anywhere
        tmp_path.chmod(0o500)
        (check,) = examine_folder(tmp_path)
        assert check.health is Health.FAIL
        tmp_path.chmod(0o700)


def test_a_log_that_can_not_be_used(field: Field, xabridge: Xabridge) -> None:
    good = field.config.read_text()
    field.open_log().close()
    (segment,) = field.log_folder.glob("segment-*")
    for of, told in (
        ("folder", "make it: mkdir -p /"),
        ("content", "another node's: orders-1"),
        ("content", "is damaged at octet 0"),
    ):
        field.config.write_text(good)
        if of == "folder":
            field.config.write_text(good.replace("/log", "/missing/log"))
        elif "another" in told:
            field.config.write_text(good.replace("orders-1", "orders-9"))
        else:
            segment.write_bytes(b"?" + segment.read_bytes()[1:])

        check = checks(xabridge)["log", of]
        assert check["health"] == "fail"
        assert told in f"{check['found']}; {check['mend']}"


def test_orphans_and_heuristic_outcomes(field: Field, xabridge: Xabridge) -> None:
    field.open_log().close()
    field.prepare("shop", field.gtrid(1))
    check = checks(xabridge)["orphans", "orphans"]
    assert (check["health"], check["condition"]) == ("ok", None), "it is young"
    field.now += 301
    check = checks(xabridge)["orphans", "orphans"]
    assert (check["health"], check["found"]) == ("warn", "1 branch in doubt, the oldest for 5 m")
    assert check["condition"] == "transaction-in-doubt"

    assert xabridge("recover", "rollback", NAME, "--yes").code == 0
    log = field.open_log()
    log.note_heuristic(Heuristic(Branch("shop", xid_of(field.gtrid(1), "shop")), Code.XA_HEURMIX))
    log.close()
    found = checks(xabridge)
    assert found["log", "content"]["health"] == "warn"
    assert "locks" not in found["orphans", "orphans"]["mend"], "it holds none any more"
    assert found["orphans", "orphans"]["found"] == "1 branch completed by hand, or by the resource itself"


def test_node_ids_that_clash(field: Field, xabridge: Xabridge) -> None:
    field.open_log().close()
    field.prepare("shop", field.gtrid(1, log_id=OTHER_LOG))
    check = checks(xabridge)["node", "node id"]
    assert check["health"] == "fail"
    assert check["found"] == (
        "1 transaction of node orders-1 in doubt whose decisions are in log 7f3a000000000001 (incarnation 3fa91c)"
    )


def test_a_resource_manager_that_does_not_diagnose_is_opened(field: Field, xabridge: Xabridge) -> None:
    field.configure(
        urls=[
            ("shop", field.url("shop", scheme="plain-test")),
            ("gone", field.url("shop", scheme="plain-test", socket="nowhere")),
        ]
    )
    found = checks(xabridge)
    assert found["shop", "opened"]["health"] == "ok"
    assert (
        found["gone", "opened"]["mend"]
        == "start it, or make it reachable from this machine; its URL is resources.gone.url"
    )
    assert ("gone", "in doubt") not in found, "said once"


def test_clocks() -> None:
    for ahead_s, health in ((4.9, Health.OK), (-37.0, Health.WARN), (5.0, Health.WARN)):
        told = {"shop": Diagnosis((), ahead_s), "broker": Diagnosis((), None)}
        (found,) = [of for of in examine_survey(PassPreview(Survey("n", 2, ()), ()), told) if of.subject == "clock"]
        clock = found.check
        assert found.condition is (CLOCK_OFF if health is Health.WARN else None)
        assert clock.health is health
        assert ahead_s > 0 or "shop 37 s behind" in clock.found
    (line,) = lines(SubjectCheck("x\x1b", Check(Health.OK, "it", "a\x07b")))
    assert line == "ok    x\\x1b      a\\x07b", "safe to show"


def of_outbox(xabridge: Xabridge) -> dict[str, tuple[str, str]]:
    """Health and words of each check of the outbox."""
    found = checks(xabridge)
    return {
        what: (check["health"], f"{check['found']} {check['mend']}")
        for (of, what), check in found.items()
        if of == "outbox"
    }


def test_the_broker_and_the_database_of_the_outbox(field: Field, xabridge: Xabridge) -> None:
    """Without a table in the file nothing is said of it. Looking makes no tables."""
    assert of_outbox(xabridge) == {}
    before = field.config.read_text()
    database = f"sqlite:///{field.folder / 'shop.db'}"

    def written(broker: str) -> dict[str, tuple[str, str]]:
        field.config.write_text(f'{before}\n[outbox]\nbroker = "{broker}"\ndatabase = "{database}"\n')
        return of_outbox(xabridge)

    away = written("amqp://127.0.0.1:1")
    assert away["broker"][0] == "fail"
    assert "127.0.0.1:1" in away["broker"][1]
    assert away["database"][0] == "warn"
    assert "no outbox yet" in away["database"][1]
    assert written("stomp://broker")["broker"][0] == "fail"
    with TestBroker() as broker:
        assert written(broker.url)["broker"][0] == "ok"
        assert xabridge("outbox", "create").code == 0
        assert of_outbox(xabridge)["database"] == ("ok", "sqlite:////field/shop.db: 0 messages waiting ")

        engine, outbox = create_engine(database), Tables().outbox
        with engine.begin() as connection:
            Outbox().put(connection, "orders", Message(1))
        assert of_outbox(xabridge)["database"][0] == "ok", "a relay may be about to send it"
        with engine.begin() as connection:
            connection.execute(update(outbox).values(created=outbox.c.created - 61))
        check = checks(xabridge)["outbox", "database"]
        assert (check["health"], check["condition"]) == ("warn", "outbox-behind")
        with engine.begin() as connection:
            connection.execute(update(outbox).values(state="refused"))
        assert checks(xabridge)["outbox", "database"]["condition"] == "outbox-set-aside"
        engine.dispose()

    field.config.write_text(f"{before}\n[outbox]\nbrokers = 1\n")
    assert of_outbox(xabridge)["configuration"][0] == "fail"


def test_a_resource_that_does_not_answer_is_asked_once(field: Field, xabridge: Xabridge) -> None:
    """By its own diagnosis, which knows how long to wait for what should speak first."""
    field.prepare("shop", field.gtrid(1))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        field.configure("shop", urls=[("elsewhere", f"mariadb://shop@127.0.0.1:{port}/shop?connect_timeout=30")])
        began = time.monotonic()
        found = checks(xabridge)
        took_s = time.monotonic() - began
    assert [check["health"] for (of, _), check in found.items() if of == "elsewhere"] == ["fail"]
    assert "says nothing in" in next(check["found"] for (of, _), check in found.items() if of == "elsewhere")
    assert found["orphans", "orphans"]["found"].startswith("1 branch in doubt")
    assert took_s < 25, "the time-out of the URL was not waited for"


def test_a_variable_that_is_not_set_is_named_with_what_to_do(field: Field, xabridge: Xabridge) -> None:
    """By `check`, too: it does not say "start it"."""
    field.open_log().close()
    url = "amqp://shop@127.0.0.1:1/?password_env=NOT_SET_HERE"
    field.config.write_text(field.config.read_text() + f'elsewhere = "{url}"\n')
    advice = "set the variable where the processes of this configuration run, and here"
    for command in ("doctor", "check"):
        found = json.loads(xabridge(command, "--json").out)["checks"]
        (failed,) = (one for one in found if one["of"] == "elsewhere")
        assert "the environment variable NOT_SET_HERE is not set" in failed["found"]
        assert advice in failed.values()


def at_broker(xabridge: Xabridge) -> dict[str, tuple[str, str | None]]:
    """Health and condition of each check of the resource `queues`, but that it can be used."""
    return {
        what: (check["health"], check["condition"])
        for (of, what), check in checks(xabridge).items()
        if of == "queues" and what != "usable"
    }


def test_what_a_broker_finds_wrong_is_named(field: Field, xabridge: Xabridge) -> None:
    with TestBroker() as broker, ManagementClient(broker.url) as management:
        field.configure("broker", "shop", urls=[("queues", broker.url)])
        assert at_broker(xabridge) == {"conditions": ("ok", None)}

        management.ask("create-queue", queue="orders")
        management.ask("pause-queue", queue="orders")
        rm, xid = AmqpResource(), xid_of(field.gtrid(1), "queues")
        assert rm.open(broker.url, 1) == Code.XA_OK
        assert rm.start(xid, 1) == Code.XA_OK
        assert rm.end(xid, 1, TMSUCCESS) == Code.XA_OK
        assert rm.prepare_kept(xid, 1) == Code.XA_OK
        broker.advance(901.0)
        broker.advance(5.0)
        assert at_broker(xabridge) == {
            "queue-paused": ("warn", "queue-paused"),
            "branch-in-doubt": ("fail", "branch-in-doubt"),
        }
        said = xabridge("doctor")
        assert said.code == 1
        assert "first: xabridge broker audit; then: ask who paused it" in said.words
        assert "orders" in said.words
        assert str(xid) in checks(xabridge)["queues", "branch-in-doubt"]["found"]
        rm.rollback(xid, 1)
        rm.close("", 1)


def test_a_user_who_may_not_look_at_the_broker_reads_that(field: Field, xabridge: Xabridge) -> None:
    with TestBroker() as broker:
        field.configure("broker", "shop", urls=[("queues", broker.url)])
        broker.inside(lambda: broker.broker.container.permissions.set(ANONYMOUS, Rule(coordinate=Coordination.ALL)))
        assert at_broker(xabridge) == {"conditions": ("ok", None)}
        assert "not known: this user may not look at the broker" in xabridge("doctor").words
