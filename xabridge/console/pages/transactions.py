"""Transactions in doubt, drawn; what each choice would do before it is taken; and a recovery pass."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from xabridge.console.brokers import BrokerProblem, BrokerUnreachable, RequestRefused, ResultUnknown
from xabridge.console.in_doubt import HERE, together
from xabridge.console.pages.requests import BrokerReply, checked_form, of_each, page_of
from xabridge.console.view import PageView
from xabridge.operations.branch_completion import OperatorAction
from xabridge.operations.recovery_pass import would
from xabridge.operations.selection import MOST_GROUPS, Filter, chosen_for, groups_of, node_of
from xabridge.operations.service import AT_ONCE, END, RECOVER, OperatorRequest
from xabridge.operations.survey import DecisionKnowledge, NotFound, State, advice, find, state_of
from xabridge.text import several

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

PAGE: Final = 100
WORKING: Final = 20
"""Branches that are not prepared, of one broker."""
AGES: Final = {"1m": 60.0, "10m": 600.0, "1h": 3600.0, "1d": 86_400.0}
"""What one can filter by."""
FEW: Final = 10
"""Of more transactions their groups are shown, and of more results only how many there are."""
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
    wanted, fields = _filter(request.query_params, doubts)
    fitting = wanted.of(found.transactions)
    number, pages = page_of(request, len(fitting), PAGE)

    context = {
        "title": "Transactions",
        "found": found,
        "count": len(fitting),
        "views": fitting[number * PAGE : (number + 1) * PAGE],
        "groups": groups_of(fitting, _here(doubts))[:MOST_GROUPS] if len(fitting) > FEW else (),
        "filter": fields,
        "nodes": sorted({node_of(view) for view in found.transactions}),
        "decisions": [known.value for known in DecisionKnowledge],
        "resources": sorted({branch.resource for view in found.transactions for branch in view.in_doubt}),
        "ages": AGES,
        "state_of": state_of,
        "verbs": VERBS,
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


def _here(doubts: InDoubtOverview) -> frozenset[str]:
    """The nodes whose logs are here, or are asked."""
    return frozenset({doubts.survey.node, *(node.survey.node for node in doubts.nodes.values())})


def _filter(query: Mapping[str, str], doubts: InDoubtOverview) -> tuple[Filter, dict[str, str]]:
    """The filter that an address names, and its fields."""
    fields = {name: query[name] for name in ("node", "decision", "resource", "older", "lost") if query.get(name)}
    known = {one.value: one for one in DecisionKnowledge}
    decision = known.get(fields.get("decision", ""))
    wanted = Filter(
        frozenset({fields["node"]}) if "node" in fields else frozenset(),
        frozenset({fields["resource"]}) if "resource" in fields else frozenset(),
        frozenset(),
        AGES.get(fields.get("older", "")),
        frozenset({decision}) if decision is not None else frozenset(),
        _here(doubts) if "lost" in fields else None,
    )
    return wanted, fields


async def _places(console: Console, session: Session, doubts: InDoubtOverview) -> list[str]:
    """Where this user may have a recovery pass made."""
    places = [HERE, *(name for name, node in doubts.nodes.items() if node.acting)]
    return [place for place in places if not await may_act(console, session, place)]


async def _working(link: BrokerLink) -> dict[str, Any]:
    found = await link.ask("branches", count=500)
    working = [one for one in found if one["state"] != _PREPARED]
    return {"branches": working[:WORKING], "count": len(working), "manage": (await link.rights()).manage}


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


async def choice_of_many(console: Console, request: Request, session: Session) -> PageView:
    """What an act would do to all that fit the filter, and are shown by one place."""
    doubts = await doubts_for(console, session)
    wanted, fields = _filter(request.query_params, doubts)
    fitting = wanted.of(doubts.survey.transactions)
    counts = Counter(doubts.place_of(view) for view in fitting)
    if not counts:
        raise RequestRefused("nothing that is in doubt fits any more")
    place = request.query_params.get("at", counts.most_common(1)[0][0])
    doing = request.query_params.get("act", "")
    if doing not in VERBS or doing == END:
        raise HTTPException(404, "There is no such act.")

    views = [view for view in fitting if doubts.place_of(view) == place]
    chosen = chosen_for(OperatorAction(doing), views, complete=doubts.survey.complete, most=AT_ONCE)
    if not chosen.plans:
        raise RequestRefused("; ".join(chosen.left_out) or "nothing that is in doubt fits any more")
    keys = tuple(planned.view.key for planned in chosen.plans)
    return await _many(console, session, place, OperatorRequest(doing, keys=keys), "", fields, chosen.left_out)


async def _many(
    console: Console,
    session: Session,
    place: str,
    wanted: OperatorRequest,
    why: str,
    fields: Mapping[str, str] = MappingProxyType({}),
    left_out: tuple[str, ...] = (),
) -> PageView:
    await _check_right(console, session, place)
    proposed, ticket = await _chosen(console, place, wanted)
    about = {
        "title": f"{VERBS[wanted.doing]} {several(len(wanted.keys), 'transaction')}",
        "left_out": left_out,
        "filter": fields,
    }
    return _choice_page(wanted, place, proposed, ticket, {**about, "why": why})


def _choice_page(
    wanted: OperatorRequest, place: str, proposed: ProposedAction, ticket: str, about: Mapping[str, Any]
) -> PageView:
    context = {
        "verb": VERBS[wanted.doing],
        "wanted": wanted,
        "at": place,
        "ticket": ticket,
        "choice": proposed,
        "view": proposed.view,
        **about,
    }
    return PageView("choice.html", context)


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
    about = {"title": f"{VERBS[wanted.doing]} {chosen.view.name}", "left_out": (), "filter": {}, "why": why}
    return _choice_page(wanted, place, chosen, ticket, about)


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
    keys = tuple(one for one in _lines(fields.get("keys", "")) if one)[:AT_ONCE]
    if keys:
        wanted = OperatorRequest(wanted.doing, keys=keys)
    try:
        said = await _carried_out(console, session, place, wanted, fields)
    except RequestRefused as refused:
        if keys:
            return await _many(console, session, place, wanted, str(refused))
        return await _choice(console, session, place, wanted, str(refused))
    session.flashes += _flashes(said)
    return RedirectResponse("/transactions", 303)


def _flashes(said: tuple[OperatorAnswer, ...]) -> list[tuple[str, str]]:
    """The results; of many that went well only how many."""
    well = [one for one in said if one.ok]
    flashes = [("good", f"{len(well)} branches are done.")] if len(well) > FEW else [("good", one.text) for one in well]
    return flashes + [("bad", one.text) for one in said if not one.ok]


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
    if wanted.keys:
        asked["transactions"] = list(wanted.keys)
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
