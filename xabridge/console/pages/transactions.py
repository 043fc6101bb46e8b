"""Transactions in doubt, drawn; what each choice would do before it is taken; and a recovery pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from xabridge.cli.completing import Act
from xabridge.cli.names import NotFound, find
from xabridge.cli.recovering import would
from xabridge.cli.survey import State, Survey
from xabridge.cli.tables import advice, state_of
from xabridge.console.app import View
from xabridge.console.brokers import Refused
from xabridge.console.pages.asking import checked_form, of_each, page_of
from xabridge.console.site_watch import finished

if TYPE_CHECKING:
    from starlette.requests import Request

    from xabridge.cli.survey import TransactionView
    from xabridge.console.app import Console
    from xabridge.console.brokers import BrokerLink
    from xabridge.console.sessions import Session

PAGE: Final = 20
_PREPARED: Final = "S3 prepared"
_VERBS: Final = {Act.COMMIT: "Commit", Act.ROLLBACK: "Roll back", Act.FORGET: "Forget"}


async def survey_for(console: Console, session: Session) -> Survey:
    """What is in doubt, as far as this user may see it. Refused: nothing of it."""
    if console.site.can_act:
        await _first(session).rights()
    beside = [link for name, link in session.links.items() if name not in console.site.resources]
    answers = await of_each(beside, _branches)
    silent = {answer.broker: answer.trouble for answer in answers if answer.told is None}
    return await console.site.survey({answer.broker: answer.told or [] for answer in answers}, silent)


async def _branches(link: BrokerLink) -> list[dict[str, Any]]:
    if not (await link.ask("status"))["in-doubt"]:
        return []
    found: list[dict[str, Any]] = await link.ask("branches", count=500)
    return found


def _first(session: Session) -> BrokerLink:
    """The broker whose permissions say who may see and finish the transactions of the site."""
    return next(iter(session.links.values()))


async def may_act(console: Console, session: Session) -> str:
    """Why this user can't finish transactions here; "" if the user can."""
    if not console.site.can_act:
        return "This console has no node of its own: use xabridge recover where the node runs."
    link = _first(session)
    rights = await link.rights()
    if rights.manage and rights.coordinate_all:
        return ""
    return f"Finishing a transaction needs the permissions manage and coordinate = all at {link.name}."


async def transactions(console: Console, request: Request, session: Session) -> View:
    """All that are in doubt, the oldest first; and work that brokers have not prepared yet."""
    found = await survey_for(console, session)
    number, pages = page_of(request, len(found.transactions), PAGE)
    context = {
        "title": "Transactions",
        "found": found,
        "views": found.transactions[number * PAGE : (number + 1) * PAGE],
        "page": number,
        "pages": pages,
        "node": console.site.node,
        "may_not": await may_act(console, session),
        "working": await of_each(list(session.links.values()), _working),
        "live": True,
    }
    return View("transactions.html", context)


async def _working(link: BrokerLink) -> dict[str, Any]:
    found = await link.ask("branches", count=500)
    working = [one for one in found if one["state"] != _PREPARED]
    return {"branches": working[:PAGE], "count": len(working), "manage": (await link.rights()).manage}


async def transaction(console: Console, request: Request, session: Session) -> View:
    """One transaction with everything that is known of it."""
    found = await survey_for(console, session)
    view = _view(found, request.query_params.get("name", ""))
    context = {
        "title": view.name,
        "view": view,
        "found": found,
        "would": would(view),
        "advice": advice(view),
        "state_of": state_of,
        "acts": _acts(view),
        "may_not": await may_act(console, session),
        "live": True,
    }
    return View("transaction.html", context)


def _view(found: Survey, name: str) -> TransactionView:
    try:
        return find(name, found.transactions)[0]
    except NotFound:
        raise Refused(f"{name} is not in doubt any more") from None


def _acts(view: TransactionView) -> list[Act]:
    """The acts that can come into question."""
    states = {branch.state for branch in view.branches}
    acts = [Act.COMMIT, Act.ROLLBACK] if states & {State.PREPARED, State.IN_DOUBT} else []
    noted = any(branch.noted is not None for branch in view.branches)
    return [*acts, *([Act.FORGET] if State.HEURISTIC in states or noted else [])]


async def choice(console: Console, request: Request, session: Session) -> View:
    """What an act would do."""
    return await _choice(console, session, request.query_params.get("act", ""), request.query_params, "")


async def _choice(console: Console, session: Session, wanted: str, about: Any, why: str) -> View:
    await _check_right(console, session)
    act, name, on = _act(wanted), about.get("name", ""), about.get("on", "")
    chosen = await console.site.choose(act, name, [on] if on else [])
    context = {
        "title": f"{_VERBS[act]} {chosen.planned.view.name}",
        "act": act.value,
        "name": name,
        "on": on,
        "choice": chosen,
        "view": chosen.planned.view,
        "why": why,
    }
    return View("choice.html", context)


def _act(text: str) -> Act:
    try:
        return Act(text)
    except ValueError:
        raise HTTPException(404, "There is no such act.") from None


async def _check_right(console: Console, session: Session) -> None:
    why = await may_act(console, session)
    if why:
        raise Refused(why, right=True)


async def act(console: Console, request: Request, session: Session) -> View | Response:
    """Does it, if it is still what was shown."""
    fields = await checked_form(request, session)
    await _check_right(console, session)
    wanted, name, on = _act(fields.get("act", "")), fields.get("name", ""), fields.get("on", "")
    told = fields.get("told", "").replace("\r\n", "\n").split("\n")
    heuristic = fields.get("heuristic") == "yes"
    asked = {"act": wanted.value, "transaction": name, "on": on, "heuristic": heuristic, "node": console.site.node}
    console.audit(session, "finish", **asked)
    try:
        done = await console.site.carry_out(wanted, name, [on] if on else [], told, heuristic=heuristic)
    except Refused as refused:
        console.audit(session, "refused", **asked, why=str(refused))
        return await _choice(console, session, wanted.value, fields, str(refused))
    for one in done:
        console.audit(session, "finished", **asked, resource=one.branch.resource, ok=one.ok, said=one.said)
        session.told.append(("good" if one.ok else "bad", finished(one)))
    return RedirectResponse("/transactions", 303)


async def expected(console: Console, _request: Request, session: Session) -> View:
    """What a recovery pass would do."""
    await _check_right(console, session)
    return View("recover.html", {"title": "Recovery pass", "lines": await console.site.expected(), "done": False})


async def recover(console: Console, request: Request, session: Session) -> View:
    """Makes a recovery pass."""
    await checked_form(request, session)
    await _check_right(console, session)
    console.audit(session, "recover", node=console.site.node)
    lines = await console.site.recover()
    console.audit(session, "recovered", node=console.site.node, lines=lines)
    return View("recover.html", {"title": "Recovery pass", "lines": lines, "done": True})
