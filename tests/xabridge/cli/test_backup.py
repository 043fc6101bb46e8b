"""These tests run `log backup`, and use a copy in place of the log."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from tests.xabridge.cli.field import INCARNATION, xid_of
from tm.log import Branch, Decision, read_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.xabridge.cli.field import Field, Said

    Xabridge = Callable[..., Said]


def backed_up(field: Field, xabridge: Xabridge) -> None:
    """A copy is made while a manager is at work, which goes on, dies, and leaves two transactions in doubt: one was
    decided before the copy was made, one after it. Then the copy takes the log's place."""
    log = field.open_log()
    early, late = field.gtrid(1), field.gtrid(2)
    for gtrid in (early, late):
        for name in ("broker", "shop"):
            field.prepare(name, gtrid, f"{name}{gtrid[-1]}")
    log.decide(Decision(early, tuple(Branch(name, xid_of(early, name)) for name in ("broker", "shop"))))
    said = xabridge("log", "backup", str(field.folder / "copy"))
    assert said.code == 0, said
    assert said.out == (
        "/field/copy: log abababababababab of orders-1, 1 decision in it\n"
        "it presumes nothing about what incarnation 3fa91c0000000001 does from now on\n"
    )
    log.decide(Decision(late, tuple(Branch(name, xid_of(late, name)) for name in ("broker", "shop"))))
    log.close()
    shutil.rmtree(field.log_folder)
    (field.folder / "copy").rename(field.log_folder)


def test_a_restored_copy_carries_out_what_it_knows_and_presumes_nothing_else(field: Field, xabridge: Xabridge) -> None:
    backed_up(field, xabridge)
    checks = json.loads(xabridge("doctor", "--json").out)["checks"]
    (content,) = [check for check in checks if check["check"] == "content"]
    assert "a copy, made while incarnation 3fa91c0000000001 was at work" in content["found"]
    for _ in range(2):
        said = xabridge("recover", "run")
        assert "orders-1·3fa91c·2    left alone: it was made by incarnation 3fa91c0000000001" in said.out
    assert field.stores["shop"].data == {"shop1": True}
    assert len(field.stores["shop"].in_doubt) == len(field.stores["broker"].in_doubt) == 1


def test_who_says_that_it_is_the_newest_has_it_presume_again(field: Field, xabridge: Xabridge) -> None:
    backed_up(field, xabridge)
    said = xabridge("recover", "run", "--newest", INCARNATION.hex())
    assert said.code == 0, said
    assert "orders-1·3fa91c·2    rolled back on broker, shop" in said.out
    assert not read_log(field.log_folder).incarnations.cut


def test_an_incarnation_that_is_not_in_question_is_refused(field: Field, xabridge: Xabridge) -> None:
    backed_up(field, xabridge)
    said = xabridge("recover", "run", "--newest", "00" * 8)
    assert said.code == 1
    assert "was not at work when this copy of the log was made (that was: 3fa91c0000000001)" in said.err
    assert field.stores["shop"].in_doubt
    assert field.run("recover", "run", "--newest", "3fa91").returncode == 2


def test_json(field: Field, xabridge: Xabridge) -> None:
    log = field.open_log()
    said = xabridge("log", "backup", str(field.folder / "copy"), "--json")
    assert json.loads(said.out) == {
        "destination": "/field/copy",
        "node": "orders-1",
        "log": "ab" * 8,
        "decisions": 0,
        "heuristics": 0,
        "at_work": [INCARNATION.hex()],
    }
    log.close()


def test_what_can_not_be_copied(field: Field, xabridge: Xabridge) -> None:
    said = xabridge("log", "backup", str(field.folder / "copy"))
    assert (said.code, "there is no decision log" in said.err) == (1, True)
    field.open_log().close()
    said = xabridge("log", "backup", str(field.folder))
    assert (said.code, "is there already" in said.err) == (1, True)
    said = xabridge("log", "backup", str(field.folder / "no" / "copy"))
    assert (said.code, "mkdir -p /field/no" in said.err) == (1, True), said.err
    text = field.config.read_text().replace(f"file://{field.log_folder}", "postgresql://db/log")
    field.config.write_text(text)
    said = xabridge("log", "backup", str(field.folder / "copy"))
    assert (said.code, "pg_dump --format=custom" in said.err) == (1, True)
