"""Changes: what one would do, counted; the confirmation; long ones with their progress; and the audit logs."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from xabridge.console.brokers import RequestRefused
from xabridge.console.change_job import Job, Progress, Selection, count, group_of
from xabridge.console.pages.requests import checked_form, chosen, link_of, of_each
from xabridge.console.view import PageView, address
from xabridge.operations import broker_changes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from xabridge.console.brokers import BrokerLink
    from xabridge.console.console import Console
    from xabridge.console.sessions import Session
    from xabridge.operations.broker_changes import Kind


AUDITED: Final = 50
"""Lines of a broker's audit log on a page."""
MOST_IDS: Final = 500
MOST_JOBS: Final = 20
_ONCE: Final = re.compile(r"[A-Za-z0-9_-]{16}")
_POSITION: Final = re.compile(r"[0-9a-f]{1,16}")


def _kind(request: Request) -> Kind:
    found = broker_changes.KINDS.get(request.path_params["operation"])
    if found is None:
        raise HTTPException(404, "There is no such change.")
    return found


def _selection(fields: Mapping[str, str]) -> Selection:
    ids = tuple(dict.fromkeys(one for one in fields.get("ids", "").split(",") if one))[:MOST_IDS]
    return Selection(fields.get("queue", ""), ids, fields.get("group", ""), fields.get("until", ""))


async def preview(_console: Console, request: Request, session: Session) -> PageView:
    """What it would do."""
    link, kind = link_of(request, session), _kind(request)
    fields = {name: ",".join(request.query_params.getlist(name)) for name in request.query_params}
    if fields.get("selected") and not fields.get("ids"):
        raise RequestRefused("nothing is selected: tick the messages that are meant")
    rights = await link.rights()
    if not rights.manage:
        raise RequestRefused(f"{rights.user} may not manage this broker", right=True)

    sentences, total, until = await _preview(link, kind, fields)
    about = {name: fields[name] for name in (*kind.about, "ids", "group") if name in fields}
    if until:
        about["until"] = until
    context = {
        "title": kind.verb,
        "kind": kind,
        "sentences": sentences,
        "total": total,
        "about": about,
        "asks": kind.asks,
        "once": secrets.token_urlsafe(12),
        "queues": await _names(link) if any(one.startswith("to") for one in kind.asks) else [],
        "back": _back(link.name, kind, fields),
    }
    return PageView("preview.html", context)


async def _preview(
    link: BrokerLink, kind: Kind, fields: Mapping[str, str], shown: int | None = None
) -> tuple[list[str], int, str]:
    """The sentences, how many messages it is about, and the position of the last one, where they are a group or all.
    `shown`: how many an earlier preview has counted, and so how many are meant."""
    if kind.of_messages:
        selection, to = _selection(fields), fields.get("to", "")
        if selection.group:
            group = await group_of(link, selection)
            total = int(group["letters"]) if shown is None else shown
            said = broker_changes.of_group(kind.operation, {**group, "letters": total}, to=to)
            return [said], total, group["until"]

        found, until = await count(link, selection)
        missing = len(selection.ids) - sum(found.values()) if selection.ids else 0
        total = found.total() if kind.operation == "copy" else found["available"]
        if shown is not None:
            total, found = shown, Counter(available=shown)
        said = broker_changes.of_messages(kind.operation, selection.queue, found, to=to, missing=missing)
        return [said], total, until
    if "queue" in kind.about:
        return broker_changes.of_queue(kind.operation, await link.queue(fields.get("queue", ""))), 1, ""
    return broker_changes.of_others(kind.operation, fields.get(kind.about[0], "")), 1, ""


async def _names(link: BrokerLink) -> list[str]:
    return [one["name"] for one in await link.queues() if one["lasting"]][:500]


def _back(broker: str, kind: Kind, fields: Mapping[str, str]) -> str:
    if "queue" in kind.about:
        return address(f"/b/{broker}/queue", name=fields.get("queue", ""))
    return {"connection": "/connections", "user": "/users", "xid": "/transactions"}[kind.about[0]]


async def change(console: Console, request: Request, session: Session) -> Response:
    """Does it; what goes message by message goes on behind the page that shows its progress."""
    link, kind = link_of(request, session), _kind(request)
    fields = await checked_form(request, session)
    if kind.of_messages:
        job = await _begun(console, session, link, kind, fields)
        return RedirectResponse(f"/jobs/{job.number}", 303)
    arguments: dict[str, Any] = {name: fields.get(name, "") for name in kind.about}
    if "force" in kind.asks:
        arguments["force"] = fields.get("force") == "yes"
    console.audit(session, kind.operation, broker=link.name, **arguments)
    await link.change(kind.operation, **arguments)
    session.flashes.append(("good", f"Done: {kinds_said(kind, fields)}."))
    gone = kind.operation == "delete-queue"
    return RedirectResponse("/queues" if gone else _back(link.name, kind, fields), 303)


def kinds_said(kind: Kind, fields: Mapping[str, str]) -> str:
    """A change that was made, in two words."""
    return f"{kind.operation.replace('-', ' ')} {fields.get(kind.about[0], '')}"


async def _begun(console: Console, session: Session, link: BrokerLink, kind: Kind, fields: Mapping[str, str]) -> Job:
    number = fields.get("once", "")
    if not _ONCE.fullmatch(number):
        raise RequestRefused("nothing was done: look at what it would do first")
    if number in session.jobs:  # the form was sent twice
        return session.jobs[number]
    if sum(job.progress is Progress.RUNNING for job in session.jobs.values()) >= MOST_JOBS:
        raise RequestRefused("nothing was done: too many changes of yours are under way")
    to = fields.get("to", "")
    if "to" in kind.asks and not to:
        raise RequestRefused("nothing was done: choose the queue that they come to")

    shown = fields.get("total", "")
    is_bounded = bool(_selection(fields).ids) or _POSITION.fullmatch(fields.get("until", ""))
    if not is_bounded or not shown.isascii() or not shown.isdecimal():
        raise RequestRefused("nothing was done: look at what it would do first")
    sentences, total, _ = await _preview(link, kind, fields, int(shown[:18]))  # not what came since the preview
    if number in session.jobs:
        return session.jobs[number]

    arguments = {"to": to} if to else {}
    job = Job(number, link, kind.operation, _selection(fields), arguments, sentences[0], total)
    while len(session.jobs) >= MOST_JOBS:
        del session.jobs[next(iter(session.jobs))]
    session.jobs[number] = job
    console.audit(
        session, kind.operation, broker=link.name, queue=job.selection.queue, change=sentences[0], **arguments
    )  # fmt: skip
    task = asyncio.create_task(_run(console, session, job))
    console.jobs.add(task)
    task.add_done_callback(console.jobs.discard)
    await asyncio.wait({task}, timeout=0.3)
    return job


async def _run(console: Console, session: Session, job: Job) -> None:
    await job.run()
    about = {"broker": job.link.name, "queue": job.selection.queue, "done": job.done, "result": job.progress.value}
    console.audit(session, job.operation, **about, said=job.said)


def _job(request: Request, session: Session) -> Job:
    found = session.jobs.get(request.path_params["number"])
    if found is None:
        raise HTTPException(404, "There is no such change of yours.")
    return found


async def job(_console: Console, request: Request, session: Session) -> PageView:
    """How far it is."""
    found = _job(request, session)
    back = address(f"/b/{found.link.name}/queue", name=found.selection.queue)
    context = {"title": "Progress", "job": found, "back": back, "live": found.progress is Progress.RUNNING}
    return PageView("job.html", context)


async def stop(console: Console, request: Request, session: Session) -> Response:
    """Ends it after the request that is under way."""
    await checked_form(request, session)
    found = _job(request, session)
    found.stopping = True
    console.audit(session, "stop", broker=found.link.name, queue=found.selection.queue)
    return RedirectResponse(f"/jobs/{found.number}", 303)


async def audit(_console: Console, request: Request, session: Session) -> PageView:
    """Who has done what, and when: a page of each broker's audit log, the newest first."""
    asked = {name: request.query_params.get(name, "").strip() for name in ("after", "who", "what")}
    patterns = {name: asked[name] or "*" for name in ("who", "what")}
    answers = await of_each(
        chosen(request, session), lambda link: link.ask("audit", after=asked["after"], count=AUDITED, **patterns)
    )
    return PageView("audit.html", {"title": "Audit", "answers": answers, "size": AUDITED, **asked})
