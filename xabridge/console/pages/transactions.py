"""Transactions in doubt, drawn; what each choice would do before it is taken; and a recovery pass."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from xabridge.console.brokers import BrokerProblem, BrokerUnreachable, RequestRefused, ResultUnknown
from xabridge.console.in_doubt import HERE, together
from xabridge.console.pages.requests import BrokerReply, checked_form, of_each, page_of
from xabridge.console.view import PageView
from xabridge.operations.branch_completion import OperatorAction
from xabridge.operations.recovery_pass import would
from xabridge.operations.service import END, RECOVER, OperatorRequest
from xabridge.operations.survey import DecisionKnowledge, NotFound, State, advice, find, state_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from xabridge.console.brokers import BrokerLink
    from xabridge.console.console import Console
    from xabridge.console.in_doubt import InDoubtOverview
    from xabridge.console.nodes import InDoubt, NodeLink
    from xabridge.console.sessions import Session
    from xabridge.operations.service import OperatorAnswer, ProposedAction
    from xabridge.operations.survey import Survey, TransactionView

PAGE: Final = 20
_PREPARED: Final = "S3 prepared"
VERBS: Final = {
    OperatorAction.COMMIT.value: "Commit",
    OperatorAction.ROLLBACK.value: "Roll back",
    OperatorAction.FORGET.value: "Forget",
    END: "End the decision of",
}


async def survey_for(console: Console, session: Session) -> Survey:
    """What is in doubt, as far as this user may see it. RequestRefused: nothing of it."""
    return (await doubts_for(console, session)).survey


async def doubts_for(console: Console, session: Session) -> InDoubtOverview:
    """The same, and as whose each transaction is shown."""
    own, answers = await asyncio.gather(_own(console, session), asyncio.gather(*map(_of_node, console.nodes)))
    nodes = {answer.broker: answer.value for answer in answers if answer.value is not None}
    return together(own, nodes, {answer.broker: answer.trouble for answer in answers if answer.trouble})


async def _of_node(link: NodeLink) -> BrokerReply[InDoubt]:
    try:
        return BrokerReply(link.name, await link.in_doubt())
    except BrokerProblem as trouble:
        return BrokerReply(link.name, None, str(trouble))


async def _own(console: Console, session: Session) -> Survey:
    if console.site.can_act or console.nodes:
        await _first(session).rights()
    beside = [link for name, link in session.links.items() if name not in console.site.resources]
    answers = await of_each(beside, _branches)
    silent = {answer.broker: answer.trouble for answer in answers if answer.value is None}
    return await console.site.survey({answer.broker: answer.value or [] for answer in answers}, silent)


async def _branches(link: BrokerLink) -> list[dict[str, Any]]:
    if not (await link.ask("status"))["in-doubt"]:
        return []
    found: list[dict[str, Any]] = await link.ask("branches", count=500)
    return found


def _first(session: Session) -> BrokerLink:
    """The broker whose permissions say who may see and finish the transactions of the site."""
    return next(iter(session.links.values()))


async def may_act(console: Console, session: Session, place: str = HERE) -> str:
    """Why this user can't finish transactions of `place`; "" if the user can."""
    if place == HERE and not console.site.can_act:
        return "This console has no node of its own: use xabridge recover where the node runs."
    if place != HERE:
        link = _node(console, place)
        if not link.may_act:
            return f"This console only looks at {place}: act_token_env in [console.nodes] lets it act there."
    first = _first(session)
    rights = await first.rights()
    if rights.manage and rights.coordinate_all:
        return ""
    return f"Finishing a transaction needs the permissions manage and coordinate = all at {first.name}."


def _node(console: Console, name: str) -> NodeLink:
    found = next((link for link in console.nodes if link.name == name), None)
    if found is None:
        raise HTTPException(404, "There is no node of this name here.")
    return found


async def transactions(console: Console, request: Request, session: Session) -> PageView:
    """All that are in doubt, the oldest first; and work that brokers have not prepared yet."""
    doubts = await doubts_for(console, session)
    found = doubts.survey
    number, pages = page_of(request, len(found.transactions), PAGE)

    context = {
        "title": "Transactions",
        "found": found,
        "views": found.transactions[number * PAGE : (number + 1) * PAGE],
        "page": number,
        "pages": pages,
        "node": console.site.node,
        "doubts": doubts,
        "places": await _places(console, session, doubts),
        "may_not": await may_act(console, session),
        "working": await of_each(list(session.links.values()), _working),
        "live": True,
    }
    return PageView("transactions.html", context)


async def _places(console: Console, session: Session, doubts: InDoubtOverview) -> list[str]:
    """Where this user may have a recovery pass made."""
    places = [HERE, *(name for name, node in doubts.nodes.items() if node.acting)]
    return [place for place in places if not await may_act(console, session, place)]


async def _working(link: BrokerLink) -> dict[str, Any]:
    found = await link.ask("branches", count=500)
    working = [one for one in found if one["state"] != _PREPARED]
    return {"branches": working[:PAGE], "count": len(working), "manage": (await link.rights()).manage}


async def transaction(console: Console, request: Request, session: Session) -> PageView:
    """One transaction with everything that is known of it."""
    doubts = await doubts_for(console, session)
    found = doubts.survey
    view = _view(found, request.query_params.get("name", ""))
    place = doubts.place_of(view)

    context = {
        "title": view.name,
        "view": view,
        "found": found,
        "would": "; ".join(would(view)),
        "advice": advice(view),
        "state_of": state_of,
        "acts": _acts(view),
        "verbs": VERBS,
        "gone": _gone(view),
        "at": place,
        "shown_by": doubts.nodes.get(place),
        "may_not": await may_act(console, session, place),
        "live": True,
    }
    return PageView("transaction.html", context)


def _view(found: Survey, name: str) -> TransactionView:
    if not name:
        raise HTTPException(404, "No transaction is named.")
    try:
        return find(name, found.transactions)[0]
    except NotFound:
        silent = [f"{place}: {why}" for place, why in found.unreachable.items()]
        silent += [found.log_trouble] if found.log_trouble is not None else []
        if silent:
            raise BrokerUnreachable(f"whether {name} is in doubt is not known now: {'; '.join(silent)}") from None
        raise RequestRefused(f"{name} is not in doubt any more") from None


def _acts(view: TransactionView) -> list[str]:
    """The acts that can come into question."""
    states = {branch.state for branch in view.branches}
    acts = [OperatorAction.COMMIT, OperatorAction.ROLLBACK] if states & {State.PREPARED, State.IN_DOUBT} else []
    noted = any(branch.noted is not None for branch in view.branches)
    return [act.value for act in (*acts, *([OperatorAction.FORGET] if State.HEURISTIC in states or noted else []))]


def _gone(view: TransactionView) -> tuple[str, ...]:
    """The resources without which its decision can be ended: those that it names and that are not configured."""
    if view.decision is not DecisionKnowledge.COMMIT:
        return ()
    return tuple(dict.fromkeys(branch.resource for branch in view.in_doubt if not branch.configured))


async def choice(console: Console, request: Request, session: Session) -> PageView:
    """What an act would do."""
    asked = request.query_params
    place, doing, name, on = (asked.get(key, "") for key in ("at", "act", "name", "on"))
    gone: tuple[str, ...] = ()
    if doing == END:
        await _check_right(console, session, place)
        gone = _gone(_view(await survey_for(console, session), name))
    return await _choice(console, session, place, _wanted(doing, name, on, gone), "")


def _wanted(doing: str, name: str, on: str, gone: tuple[str, ...]) -> OperatorRequest:
    if doing not in VERBS:
        raise HTTPException(404, "There is no such act.")
    return OperatorRequest(doing, name, (on,) if on else (), gone)


async def _choice(console: Console, session: Session, place: str, wanted: OperatorRequest, why: str) -> PageView:
    await _check_right(console, session, place)
    chosen, ticket = await _chosen(console, place, wanted)
    if chosen.view is None:
        raise RequestRefused("nothing was done: there is nothing to show")
    context = {
        "title": f"{VERBS[wanted.doing]} {chosen.view.name}",
        "verb": VERBS[wanted.doing],
        "wanted": wanted,
        "at": place,
        "ticket": ticket,
        "choice": chosen,
        "view": chosen.view,
        "why": why,
    }
    return PageView("choice.html", context)


async def _chosen(console: Console, place: str, wanted: OperatorRequest) -> tuple[ProposedAction, str]:
    if place == HERE:
        return await console.site.choose(wanted), ""
    return await _node(console, place).choose(wanted)


async def _check_right(console: Console, session: Session, place: str) -> None:
    why = await may_act(console, session, place)
    if why:
        raise RequestRefused(why, right=True)


async def act(console: Console, request: Request, session: Session) -> PageView | Response:
    """Does it, if it is still what was shown."""
    fields = await checked_form(request, session)
    place = fields.get("at", HERE)
    await _check_right(console, session, place)
    gone = tuple(one for one in _lines(fields.get("gone", "")) if one)
    wanted = _wanted(fields.get("act", ""), fields.get("name", ""), fields.get("on", ""), gone)
    try:
        said = await _carried_out(console, session, place, wanted, fields)
    except RequestRefused as refused:
        return await _choice(console, session, place, wanted, str(refused))
    session.flashes += [("good" if one.ok else "bad", one.text) for one in said]
    return RedirectResponse("/transactions", 303)


def _lines(text: str) -> tuple[str, ...]:
    return tuple(text.replace("\r\n", "\n").split("\n"))


async def _carried_out(
    console: Console, session: Session, place: str, wanted: OperatorRequest, fields: Mapping[str, str]
) -> tuple[OperatorAnswer, ...]:
    """Does it there, with a line in the log before and after."""
    heuristic = fields.get("heuristic") == "yes"
    asked: dict[str, Any] = {"act": wanted.doing, "node": place or console.site.node}
    if wanted.doing != RECOVER:
        asked |= {"transaction": wanted.name, "on": "".join(wanted.on), "heuristic": heuristic}
    if wanted.gone:
        asked["gone"] = list(wanted.gone)
    console.audit(session, "finish", **asked)

    try:
        if place == HERE:
            said = await console.site.carry_out(wanted, _lines(fields.get("shown", "")), heuristic=heuristic)
        else:
            who = f"{session.shown}, by the console"
            said = await _node(console, place).carry_out(fields.get("ticket", ""), heuristic=heuristic, who=who)
    except BrokerProblem as trouble:
        came = (
            "refused"
            if isinstance(trouble, RequestRefused)
            else "unknown"
            if isinstance(trouble, ResultUnknown)
            else "failed"
        )
        console.audit(session, came, **asked, why=str(trouble))
        raise
    console.audit(session, "finished", **asked, ok=all(one.ok for one in said), said=[one.text for one in said])
    return said


async def expected(console: Console, request: Request, session: Session) -> PageView:
    """What a recovery pass would do."""
    place = request.query_params.get("at", HERE)
    await _check_right(console, session, place)
    chosen, ticket = await _chosen(console, place, OperatorRequest(RECOVER))
    context = {"title": "Recovery pass", "lines": chosen.shown, "done": False, "at": place, "ticket": ticket}
    return PageView("recover.html", context)


async def recover(console: Console, request: Request, session: Session) -> PageView:
    """Makes a recovery pass."""
    fields = await checked_form(request, session)
    place = fields.get("at", HERE)
    await _check_right(console, session, place)
    said = await _carried_out(console, session, place, OperatorRequest(RECOVER), fields)
    lines = [one.text for one in said]
    return PageView("recover.html", {"title": "Recovery pass", "lines": lines, "done": True, "at": place, "ticket": ""})
