"""What is in doubt is shown once, as the one knows it whose log it is."""

from __future__ import annotations

from xa import FORMAT_ID, Gtrid, Xid
from xabridge.cli.survey import BranchView, Known, State, Survey, TransactionView
from xabridge.console.doubts import HERE, together
from xabridge.console.nodes import InDoubt


def view(number: int, decision: Known, age_s: float = 1.0, *, at_work: bool = False) -> TransactionView:
    gtrid = Gtrid("orders-1", b"\xab" * 8, b"\x01" * 8, number).encode()
    branch = BranchView("shop", Xid(FORMAT_ID, gtrid, b"shop"), State.PREPARED, age_s)
    return TransactionView(FORMAT_ID, gtrid, decision, "why", (branch,), at_work=at_work)


def survey(*views: TransactionView, trouble: str | None = None, **unreachable: str) -> Survey:
    return Survey("n", 1, views, unreachable, trouble)


def node(*views: TransactionView, acting: bool = True, live: frozenset[bytes] = frozenset(), **told: str) -> InDoubt:
    return InDoubt(1, acting, survey(*views, **told), live)


def test_whose_log_knows_tells() -> None:
    """What is under way is in nobody's doubt."""
    unknown, known = view(1, Known.UNKNOWN), view(1, Known.COMMIT)
    doubts = together(survey(unknown), {"a": node(unknown), "b": node(known)}, {})
    assert doubts.survey.transactions == (known,)
    assert doubts.place_of(known) == "b"
    live = view(2, Known.UNKNOWN)
    doubts = together(survey(live, view(1, Known.NONE)), {"a": node(live=frozenset([live.gtrid]))}, {})
    assert doubts.survey.transactions == (view(1, Known.NONE),)


def test_of_several_who_know_one_that_can_be_acted_through() -> None:
    known, busy = view(1, Known.NONE), view(1, Known.NONE, at_work=True)
    looks, acts = node(known, acting=False), node(known)
    assert together(survey(known), {"a": looks, "b": acts}, {}).place_of(known) == "b"
    assert together(survey(known), {"b": node(busy)}, {}).place_of(known) == HERE
    assert together(survey(known), {}, {"b": "is away"}).place_of(known) == HERE


def test_the_oldest_is_first_and_who_is_silent_is_told() -> None:
    doubts = together(
        survey(view(1, Known.NONE, 5.0)), {"a": node(view(2, Known.NONE, 9.0), shop="is away")}, {"b": "gone"}
    )
    assert [one.ours.sequence for one in doubts.survey.transactions if one.ours] == [2, 1]
    assert doubts.survey.unreachable == {"shop of a": "is away", "node b": "gone"}
    assert not doubts.survey.complete
