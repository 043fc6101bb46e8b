"""These tests check the printed output of recover list, show and watch."""

from __future__ import annotations

import json
import signal
from types import SimpleNamespace

import pytest

from tests.xabridge.cli.field import NODE, OTHER_LOG, OTHERS, Field, Xabridge, xid_of
from tm import TransactionManager
from tm.log import Branch, Heuristic
from xa import Code, Xid
from xabridge.testing.reference import ReferenceResource

FOREIGN = Xid(4660, b"somebody else's transaction, with a long name", b"branch")


def fill(field: Field) -> None:
    """A bit of everything: decided, another node's, another manager's, undecided; and one that can't be reached."""
    decided = field.gtrid(8231)
    field.decide(decided, "broker", "shop")
    field.prepare("broker", decided, "a", "b")
    field.prepare("shop", decided, "c")
    field.now += 240
    field.prepare("shop", field.gtrid(114, node="orders-2", log_id=OTHER_LOG, incarnation=OTHERS), "d")
    field.now += 100
    field.prepare("shop", b"", "e", xid=FOREIGN)
    field.prepare("broker", field.gtrid(9000), "f")
    field.configure("broker", "shop", urls=[("analytics", field.url("analytics", socket="nowhere"))])


NARROW = """\
XID                           AGE    STATE        DECISION  HELD BY
orders-1·3fa91c·8231          5 m    prepared     commit    broker
    2 keys locked in broker
                              5 m    prepared     commit    shop
    1 key locked in shop
orders-2·c07d11·114           100 s  prepared     unknown   shop
    1 key locked in shop
    another node's: its log is not here (node orders-2, log 7f3a000000000001)
4660_c29tZWJvZHkgZWxzZSdzIHRyYW5zYWN0aW9uLCB3aXRoIGEgbG9uZyBuYW1l
                              0 s    prepared     unknown   shop
    1 key locked in shop
    another transaction manager's (format id 4660): its log is not here
orders-1·3fa91c·9000          0 s    prepared     none      broker
    1 key locked in broker
4 transactions in doubt on 2 resource managers, 1 of them not xabridge's
analytics could not be reached: analytics can't be reached at /field/nowhere
"""

WIDE = """\
XID                               NODE      AGE    STATE     DECISION  HELD BY  HOLDS
orders-1·3fa91c·8231              orders-1  5 m    prepared  commit    broker   2 keys locked in broker
                                            5 m    prepared  commit    shop     1 key locked in shop
orders-2·c07d11·114               orders-2  100 s  prepared  unknown   shop     1 key locked in shop
    another node's: its log is not here (node orders-2, log 7f3a000000000001)
4660_c29tZWJvZHkgZWxzZSdzIHRyYW…  -         0 s    prepared  unknown   shop     1 key locked in shop
    another transaction manager's (format id 4660): its log is not here
orders-1·3fa91c·9000              orders-1  0 s    prepared  none      broker   1 key locked in broker
4 transactions in doubt on 2 resource managers, 1 of them not xabridge's
"""


def joined(text: str) -> str:
    """Without the line breaks of the last paragraph, which depend on how long a path is."""
    head, found, tail = text.partition("analytics could not")
    return head + " ".join((found + tail).split()) + ("\n" if found else "")


def test_the_tables(field: Field, xabridge: Xabridge) -> None:
    fill(field)
    said = xabridge("recover", "list")
    assert joined(said.out) == NARROW
    assert said.code == 4
    assert max(map(len, NARROW.splitlines())) <= 80
    assert xabridge("recover", "list", "--wide").out.startswith(WIDE)
    value = json.loads(xabridge("recover", "list", "--json").out)
    assert value["unreachable"].keys() == {"analytics"}

    assert value["complete"] is False
    first = value["transactions"][0]
    assert first["name"] == "orders-1·3fa91c·8231"
    assert (first["node"], first["log"], first["sequence"], first["decision"]) == (NODE, "ab" * 8, 8231, "commit")
    branch = first["branches"][0]
    assert Xid.parse(branch["xid"]).gtrid.hex() == first["gtrid"]
    assert branch["age_s"] == 340.0
    assert branch["holds"] == [{"relation": "locked", "place": "broker", "unit": "key", "count": 2, "note": ""}]


def test_a_branch_that_two_resources_of_one_server_list_is_shown_once(field: Field, xabridge: Xabridge) -> None:
    field.configure("shop", urls=[("again", field.url("shop"))])
    decided, undecided = field.gtrid(1), field.gtrid(2)
    field.decide(decided, "shop")
    field.prepare("shop", decided)
    field.prepare("shop", undecided)
    field.prepare("shop", b"", xid=Xid(7, b"foreign", b"b"))  # who knows whether that is one branch

    views = json.loads(xabridge("recover", "list", "--json").out)["transactions"]
    listed = sorted(
        (view["decision"], branch["resource"], branch["also"]) for view in views for branch in view["branches"]
    )
    assert listed == [
        ("commit", "shop", ["again"]), ("none", "again", ["shop"]), ("unknown", "again", []), ("unknown", "shop", []),
    ]  # fmt: skip
    assert "the same on again: on one server" in xabridge("recover", "list").out
    assert "the same on again: on one server" in xabridge("recover", "list", "--wide").out
    said = xabridge("recover", "commit", str(xid_of(decided, "shop")), "--on", "again", "--yes")
    assert (said.code, said.out.count("committed")) == (0, 1), said
    assert "again" not in said.out


def test_nothing_in_doubt(field: Field, xabridge: Xabridge) -> None:
    said = xabridge("recover", "list")
    assert (said.code, said.out, said.err) == (0, "nothing in doubt on 2 resource managers\n", "")
    assert not field.log_folder.exists(), "looking makes no log"


def test_what_others_have_in_doubt_is_shown_and_no_trouble_of_ours(field: Field, xabridge: Xabridge) -> None:
    """Many transaction managers write their xids into PostgreSQL's gids in the same form."""
    field.prepare("shop", b"", "e", xid=FOREIGN)
    for action in (("list",), ("list", "--json"), ("list", "--names"), ("show", str(FOREIGN))):
        said = xabridge("recover", *action)
        assert said.code == 0, action
        assert "4660_" in said.out or "4660" in said.out
    assert "1 transaction in doubt on 1 resource manager, 1 of them not xabridge" in xabridge("recover", "list").out
    field.prepare("shop", field.gtrid(9000), "f")
    assert xabridge("recover", "list").code == 3


def test_beside_a_manager_at_work(field: Field, xabridge: Xabridge) -> None:
    field.configure("broker", "shop")
    with TransactionManager.from_config(field.config) as tm:
        with tm.begin() as tx:
            tx["broker"].write("k", 1)
            tx["shop"].write("k", 1)
            assert xabridge("recover", "list").code == 0
        assert xabridge("recover", "list").code == 0
        assert xabridge("doctor").code in {0, 1}  # the test's folder may be kept in memory
        with tm.begin() as tx:
            tx["broker"].write("k", 2)
            tx["shop"].write("k", 2)
    assert field.stores["shop"].data == {"k": 2}


FILTERS = {
    "a node": (["--node", "orders-2"], ["orders-2·c07d11·114"]),
    "two nodes": (
        ["--node", "orders-2", "--node", NODE],
        ["orders-1·3fa91c·8231", "orders-2·c07d11·114", "orders-1·3fa91c·9000"],
    ),
    "a resource manager": (["--rm", "broker"], ["orders-1·3fa91c·8231", "orders-1·3fa91c·9000"]),
    "an age": (["--older-than", "2m"], ["orders-1·3fa91c·8231"]),
    "a state": (["--state", "heuristic"], []),
    "all of them": (
        ["--node", NODE, "--rm", "shop", "--state", "prepared", "--older-than", "1s"],
        ["orders-1·3fa91c·8231"],
    ),
}


def test_filters(field: Field, xabridge: Xabridge) -> None:
    fill(field)
    field.configure("broker", "shop")
    for case, (arguments, names) in FILTERS.items():
        said = xabridge("recover", "list", "--names", *arguments)
        assert said.out.splitlines() == names, case
        assert said.code == (3 if names else 0), case
    value = json.loads(xabridge("recover", "list", "--rm", "shop", "--node", NODE, "--json").out)
    (transaction,) = value["transactions"]
    assert [branch["resource"] for branch in transaction["branches"]] == ["broker", "shop"], "what it finds is whole"


def test_a_decided_branch_that_is_finished_is_shown_with_the_others(field: Field, xabridge: Xabridge) -> None:
    field.decide(field.gtrid(1), "broker", "shop")
    assert xabridge("recover", "list").code == 0, "nothing is in doubt where all of them are"
    decided = field.gtrid(2)
    field.decide(decided, "broker", "shop", "analytics")
    field.prepare("broker", decided)
    out = xabridge("recover", "list").out
    assert "not reached  commit    analytics" in out, "not configured, so nobody knows"
    assert "finished     commit    shop" in out
    assert "1 transaction in doubt on 2 resource managers" in out


def test_what_is_not_as_it_should_be_keeps_nobody_from_looking(field: Field, xabridge: Xabridge) -> None:
    field.open_log().close()
    later = field.prepare("shop", field.gtrid(1, incarnation=b"\x09" * 8))
    said = xabridge("recover", "list")
    assert "prepared unknown shop" in said.words
    assert "an old copy, which can't know what was decided since" in said.words
    rm = ReferenceResource(field.stores["shop"])
    rm.open(field.stores["shop"].url, 1)
    rm.rollback(later, 1)

    field.prepare("shop", field.gtrid(1))
    field.configure(urls=[("shop", field.url("shop", scheme="plain-test"))])  # it tells only xids
    assert "orders-1·3fa91c·1             ?      in doubt     none      shop\n" in xabridge("recover", "list").out
    field.configure(urls=[("shop", field.url("shop")), ('"sh\\u001b[2J"', field.url("shop", socket="nowhere"))])
    out = xabridge("recover", "list").out
    assert "\x1b" not in out, "it would move the cursor"
    assert "sh\\x1b[2J could not be reached" in out

    field.configure("shop")
    (segment,) = field.log_folder.glob("segment-*")
    octets = bytearray(segment.read_bytes())
    octets[100] ^= 1
    segment.write_bytes(octets)
    said = xabridge("recover", "list")
    assert said.code == 4
    assert "the decisions could not be read: " in said.words
    assert "prepared     unknown   shop" in said.out


def test_nothing_in_doubt_is_not_the_first_word_where_the_decisions_can_not_be_read(
    field: Field, xabridge: Xabridge
) -> None:
    field.open_log().close()
    field.config.write_text(field.config.read_text().replace("orders-1", "orders-9"))
    said = xabridge("recover", "list")
    assert said.code == 4
    assert said.out.startswith("the decisions could not be read: ")
    assert said.out.endswith("\nnothing found in doubt on 2 resource managers\n")


def test_heuristic_outcomes_of_the_resource_manager_and_of_the_log(field: Field, xabridge: Xabridge) -> None:
    one, two = field.gtrid(1), field.gtrid(2)
    field.open_log().close()
    xid = field.prepare("shop", one)
    field.stores["shop"].complete_heuristically(xid, Code.XA_HEURMIX)
    log = field.open_log()
    log.note_heuristic(Heuristic(Branch("broker", Xid(xid.format_id, two, b"broker")), Code.XA_HEURRB))
    log.close()
    value = json.loads(xabridge("recover", "list", "--json").out)
    shown = {view["name"]: (view["decision"], view["branches"][0]["outcome"]) for view in value["transactions"]}
    assert shown == {"orders-1·3fa91c·1": ("ended", "XA_HEURMIX"), "orders-1·3fa91c·2": ("ended", "XA_HEURRB")}


# --- show -------------------------------------------------------------------------------------------------------------
SHOWN = """\
orders-1·3fa91c·8231
  node      orders-1 (this one)
  log       abababababababab, incarnation 3fa91c0000000001, number 8231
  decision  commit: the log has it; recovery commits the remaining branches
  broker    prepared for 5 m
            holds 2 keys locked in broker
            xid 1480671793_b3JkZXJzLTEAq6urq6urq6s/qRwAAAAAAQAAAAAAACAn_YnJva2Vy
  shop      prepared for 5 m
            holds 1 key locked in shop
            xid 1480671793_b3JkZXJzLTEAq6urq6urq6s/qRwAAAAAAQAAAAAAACAn_c2hvcA==
  next      xabridge recover run, unless the transaction manager of this node
            runs: it recovers by itself
"""


def test_show_by_any_of_its_names(field: Field, xabridge: Xabridge) -> None:
    assert xabridge("recover", "show", "orders-1·3fa91c·5").code == 1
    fill(field)
    said = xabridge("recover", "show", "orders-1·3fa91c·5")
    assert said.code == 4, "it may be where nobody could look"
    assert "orders-1·3fa91c·5: no such transaction is in doubt here" in said.err
    assert "made by   another transaction manager (format id 4660)" in xabridge("recover", "show", "4660_c29t…").out
    field.configure("broker", "shop")
    gtrid = "1480671793_b3JkZXJzLTEAq6urq6urq6s/qRwAAAAAAQAAAAAAACAn"
    for name in (
        "orders-1·3fa91c·8231", "orders-1:3fa91c:8231", "orders-1/3fa91c/8231", gtrid, f"{gtrid}_c2hvcA==",
    ):  # fmt: skip
        said = xabridge("recover", "show", name)
        assert (said.code, said.out) == (3, SHOWN), name

    said = xabridge("recover", "show", "1480671793_b3JkZXJzLTE")
    assert said.code == 1
    assert "this names 2 transactions; choose one by its xid: 1480671793_" in said.err


# --- watch ------------------------------------------------------------------------------------------------------------
def test_watch_tells_changes_until_it_is_interrupted(
    field: Field, xabridge: Xabridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    field.open_log().close()
    xid = field.prepare("shop", field.gtrid(1))
    store = field.stores["shop"]

    def roll_back() -> None:
        with store.lock:
            store.rollback(store.known[xid])

    def interrupt() -> None:
        field.open_log().close()  # looking holds nothing
        raise KeyboardInterrupt

    between = iter([store.partition, store.heal, roll_back, interrupt])
    monkeypatch.setattr("xabridge.cli.recover_views.time", SimpleNamespace(sleep=lambda _: next(between)()))
    said = xabridge("recover", "watch", "--interval", "1h")
    assert said.code == 0
    first, away, back, gone = (line[9:] for line in said.out.splitlines())
    assert first == "+ orders-1·3fa91c·1 on shop: prepared, decision none"
    assert away.startswith("+ shop: could not be reached: ")
    assert back == "- shop", "and the branch was never said to be gone"
    assert gone == "- orders-1·3fa91c·1 on shop"


@pytest.mark.slow
def test_watch_on_a_terminal(field: Field) -> None:
    fill(field)
    watch = ["recover", "watch", "--interval", "0.05s"]
    screen = field.on_a_terminal(watch, until="could not be reached", typed="\x03")
    assert field.last_code == 0
    assert "xabridge recover watch · node orders-1 · " in screen
    assert "orders-1·3fa91c·8231          5 m    prepared     commit    broker" in screen
    with field.popen("recover", "watch", "--interval", "1h") as process:
        assert process.stdout is not None
        assert process.stdout.readline()[9:].startswith("+ ")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_usage(field: Field, xabridge: Xabridge, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        xabridge("recover", "list", "--help")
    assert "6 log in use, nothing done" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        xabridge("recover", "list", "--older-than", "soon")

    for text, command, told in (
        ('node = "two words"\n', "list", "node: expected a name that stays the same"),
        (
            'node = "n"\n[resources]\na = "gopher://x"\n', "run",
            "resources.a.url: no resource manager is registered for gopher",
        ),
    ):  # fmt: skip
        field.config.write_text(text)
        said = xabridge("recover", command)
        assert (said.code, said.out) == (2, "")
        assert said.err.startswith(f"xabridge recover: /field/xabridge.toml: {told}")


@pytest.mark.slow
def test_many_are_summed_up(field: Field, xabridge: Xabridge) -> None:
    """Before them the groups of all; fifty are listed, the oldest first. All of them with --all."""
    field.open_log().close()
    for number in range(70):
        field.prepare("broker", field.gtrid(number))
        field.prepare("shop", field.gtrid(number))
        field.now += 1

    field.prepare("shop", b"", "e", xid=FOREIGN)
    said = xabridge("recover", "list")
    assert said.code == 3
    assert "orders-1·3fa91c·49 " in said.out
    assert "orders-1·3fa91c·50 " not in said.out
    assert said.out.startswith(
        """\
   70  orders-1, decision none: prepared on broker and shop, oldest 70 s
    1  foreign, decision unknown: prepared on shop, oldest 0 s

XID """
    )
    assert said.out.endswith(
        """\
… and 21 transactions more; --all lists them
71 transactions in doubt on 2 resource managers, 1 of them not xabridge's
"""
    )
    everything = xabridge("recover", "list", "--all").out
    assert all(f"orders-1·3fa91c·{number} " in everything for number in range(70))
    assert len(xabridge("recover", "list", "--names").out.splitlines()) == 71
    assert len(json.loads(xabridge("recover", "list", "--json").out)["transactions"]) == 71
    said = xabridge("recover", "run", "--dry-run")
    assert len(said.out.splitlines()) < 2 * 55
    assert "… and 21 transactions more (--all tells of each):" in said.out
    assert len(xabridge("recover", "run", "--dry-run", "--all").out.splitlines()) >= 2 * 70
    said = xabridge("recover", "run")
    assert len(said.out.splitlines()) < 55
    assert "20 rolled back on broker, shop" in said.words
