"""NodePages: what a running manager shows and does when an operator finishes transactions by hand (docs/operations.md,
"Acting through a node").

    GET  /node/in-doubt   with http_token       what is in doubt, as `recover list` shows it
    POST /node/preview    with http_act_token   {"doing", "name", "on", "gone"}: what it would do, and a ticket
    POST /node/act        with http_act_token   {"ticket", "heuristic", "who"}: does it, and says the result

What is done is what a ticket was given for, and nothing else: its holder has seen the text. The ticket is drawn by this
process, serves once, and for TICKET_S. So a request that is sent again, by a proxy or by somebody who has recorded it,
does nothing: it is answered with the result of the first one. After a restart no ticket of before is known (410). Then
the result is not known here, and the asker looks again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from xa.telemetry.endpoint import JSON, Answer
from xabridge.operations import survey_json
from xabridge.operations.progress import silent
from xabridge.operations.service import (
    AT_ONCE,
    DOING,
    RECOVER,
    ActionRefused,
    AnswerUnavailable,
    OperatorRequest,
    OperatorService,
)
from xabridge.operations.site import RunningNode
from xabridge.operations.survey import survey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tm.manager import Manager
    from xa.telemetry.endpoint import Act, Page

LOG: Final = logging.getLogger("xabridge.node")
AUDIT: Final = logging.getLogger("xabridge.node.audit")
TICKET_S: Final = 900.0
TICKETS: Final = 1000
ANSWER_S: Final = 8.0
"""How long the asker waits for what is done; then the answer is that it goes on."""
REST: Final = 20.0
"""What is in doubt is put together again after so many times as long as that had the processor. It is the processor of
the application: where a hundred thousand branches are in doubt, somebody who looks takes no more than a twentieth."""
LIVE: Final = 500
_LONGEST: Final = 1000
_MANY: Final = 50


class NodePages:
    """The `tm.transaction_manager.Operations` of a manager."""

    def __init__(
        self,
        manager: Manager,
        *,
        acting: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manager = manager
        self._acting = acting
        self._clock = clock
        self._operations: OperatorService | None = None
        self._closed = False
        self._tickets: dict[str, _Ticket] = {}
        self._in_doubt_until = 0.0
        self._in_doubt_answer: Answer | None = None

    @property
    def pages(self) -> Mapping[str, Page]:
        return {"/node/in-doubt": self._in_doubt}

    @property
    def acts(self) -> Mapping[str, Act]:
        return {"/node/preview": self._preview, "/node/act": self._act}

    def close(self) -> None:
        self._closed = True
        if self._operations is not None:
            self._operations.close()

    @property
    def operations(self) -> OperatorService:
        """What does it; made when somebody asks first, because the manager is not complete before. ActionRefused: the
        manager is closing."""
        if self._closed:
            raise ActionRefused("nothing was done: this process is ending")
        if self._operations is None:
            self._operations = OperatorService(RunningNode(self._manager, silent()), self._clock)
        return self._operations

    # -- the pages
    async def _in_doubt(self) -> Answer:
        if self._in_doubt_answer is not None and self._clock() < self._in_doubt_until:
            return self._in_doubt_answer
        try:
            seen = await self.operations.look()
        except (ActionRefused, AnswerUnavailable) as error:
            return _answer(503, {"why": str(error)})
        began = time.thread_time()
        live = [one.gtrid.hex() for one in self._manager.live if not one.waits][:LIVE]
        encoded = survey_json.encode_survey(survey(seen))
        self._in_doubt_answer = _answer(
            200, {"pid": os.getpid(), "acting": self._acting, "survey": encoded, "live": live}
        )
        self._in_doubt_until = self._clock() + REST * (time.thread_time() - began)
        return self._in_doubt_answer

    async def _preview(self, body: bytes) -> Answer:
        try:
            wanted = _wanted(json.loads(body))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            return _answer(400, {"why": f"this asks for nothing that can be done: {error}"})
        try:
            choice = await self.operations.choose(wanted)
        except (ActionRefused, AnswerUnavailable) as error:
            return _answer(409, {"why": str(error)})

        ticket = self._ticket_for(wanted, choice.shown)
        view = None if choice.view is None else survey_json.encode_transaction(choice.view)
        shown = {"told": choice.shown, "refused": choice.refused, "needs_heuristic": choice.needs_heuristic}
        return _answer(200, {"ticket": ticket, "view": view, **shown})

    async def _act(self, body: bytes) -> Answer:
        try:
            request = json.loads(body)
            number, heuristic, who = request["ticket"], request["heuristic"] is True, str(request["who"])[:_LONGEST]
            ticket = self._tickets.get(number)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            return _answer(400, {"why": f"this asks for nothing that can be done: {error}"})
        if ticket is None or (ticket.doing is None and self._clock() - ticket.since > TICKET_S):
            why = "nothing was done now: it is not known here what was shown. Look again"
            return _answer(410, {"why": why})
        if ticket.doing is None:
            ticket.doing = asyncio.get_running_loop().create_task(self._carried_out(ticket, who, heuristic=heuristic))
        await asyncio.wait({ticket.doing}, timeout=ANSWER_S)
        if not ticket.doing.done():
            return _answer(200, {"state": "running"})
        return _answer(200, ticket.doing.result())

    # -- tickets
    def _ticket_for(self, wanted: OperatorRequest, shown: tuple[str, ...]) -> str:
        while len(self._tickets) >= TICKETS:
            oldest = next((name for name, one in self._tickets.items() if one.is_over), next(iter(self._tickets)))
            del self._tickets[oldest]
        number = secrets.token_urlsafe(24)
        self._tickets[number] = _Ticket(wanted, shown, self._clock())
        return number

    async def _carried_out(self, ticket: _Ticket, who: str, *, heuristic: bool) -> dict[str, Any]:
        wanted = ticket.wanted
        about = {"node": self._manager.node, "what": wanted.doing, "heuristic": heuristic}
        if wanted.doing != RECOVER:
            about |= {"transaction": wanted.name, "on": list(wanted.on), "gone": list(wanted.gone)}
        if wanted.keys:
            about["transactions"] = list(wanted.keys)
        _audit(who, "asked", about, told=list(ticket.shown))

        try:
            self._in_doubt_answer = None
            said = await self.operations.carry_out(wanted, ticket.shown, heuristic=heuristic)
        except ActionRefused as error:
            _audit(who, "refused", about, why=str(error))
            return {"state": "refused", "why": str(error)}
        except AnswerUnavailable as error:
            _audit(who, "failed", about, why=str(error))
            return {"state": "failed", "why": str(error)}
        except Exception as error:
            LOG.exception("what was asked for by hand has failed")
            _audit(who, "failed", about, why=type(error).__name__)
            return {
                "state": "failed",
                "why": "it is unknown whether this was done: the node's log says why. Look again",
            }
        finally:
            self._in_doubt_answer = None
        _audit(who, "done", about, said=[one.text for one in said], ok=all(one.ok for one in said))
        return {"state": "done", "said": [[one.ok, one.text] for one in said]}


@dataclass(slots=True)
class _Ticket:
    """What was shown, and its result."""

    wanted: OperatorRequest
    shown: tuple[str, ...]
    since: float
    doing: asyncio.Task[dict[str, Any]] | None = None

    @property
    def is_over(self) -> bool:
        return self.doing is not None and self.doing.done()


def _wanted(request: Any) -> OperatorRequest:
    doing, name = request["doing"], request["name"]
    on, gone, keys = request["on"], request["gone"], request.get("keys", [])
    texts = [name, *on, *gone]
    if doing not in DOING:
        raise ValueError(f"doing is one of {', '.join(sorted(DOING))}")
    if len(texts) > _MANY or len(keys) > AT_ONCE:
        raise ValueError("too many names")
    if not all(isinstance(one, str) and len(one) <= _LONGEST for one in (*texts, *keys)):
        raise ValueError("names are texts")
    return OperatorRequest(doing, name, tuple(on), tuple(gone), tuple(keys))


def _answer(status: int, content: Mapping[str, Any]) -> Answer:
    return Answer(status, json.dumps(content).encode() + b"\n", JSON)


def _audit(who: str, came: str, about: Mapping[str, Any], **more: Any) -> None:
    """A line about what is done by hand. As a warning, because it is to be read also where logging is not set up."""
    AUDIT.warning("%s", json.dumps({"who": who, "came": came, **about, **more}, ensure_ascii=True))
