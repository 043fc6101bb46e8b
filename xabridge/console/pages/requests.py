"""What most pages do: find the broker that an address names, check a form, ask all brokers at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from starlette.exceptions import HTTPException

from xabridge.console.brokers import BrokerProblem, BrokerUnreachable, NotAnsweredYet
from xabridge.console.security import form_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from xabridge.console.brokers import BrokerLink
    from xabridge.console.sessions import Session

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BrokerReply(Generic[T]):
    """What one broker has replied; `value` is None if it has not, and `trouble` says why."""

    broker: str
    value: T | None
    trouble: str = ""
    away: bool = False
    """Whether it is known that it can't be reached."""
    pending: bool = False
    """Whether it may still answer."""

    @classmethod
    def failed(cls, broker: str, trouble: BrokerProblem) -> BrokerReply[T]:
        """It has not replied."""
        pending = isinstance(trouble, NotAnsweredYet)
        return cls(broker, None, str(trouble), isinstance(trouble, BrokerUnreachable) and not pending, pending)


def link_of(request: Request, session: Session) -> BrokerLink:
    """The link to the broker that the address names."""
    link = session.links.get(request.path_params["broker"])
    if link is None:
        raise HTTPException(404, "There is no broker of this name here.")
    return link


async def checked_form(request: Request, session: Session) -> dict[str, str]:
    """The fields of a form of this session."""
    fields = await form_of(request)
    if not session.is_token(fields.get("token", "")):
        raise HTTPException(
            403, "Nothing was done: this form is not one of your session. Go back and load the page anew."
        )
    return fields


async def of_each(links: list[BrokerLink], question: Callable[[BrokerLink], Awaitable[T]]) -> list[BrokerReply[T]]:
    """What each broker says, asked all at once."""

    async def asked(link: BrokerLink) -> BrokerReply[T]:
        try:
            return BrokerReply(link.name, await question(link))
        except BrokerProblem as trouble:
            return BrokerReply.failed(link.name, trouble)

    return list(await asyncio.gather(*map(asked, links)))


async def check_may_look(session: Session) -> None:
    """Checks that the user may look at the first broker, and so may see nodes and pipelines. RequestRefused: it may
    not; BrokerUnreachable: the broker can't be asked."""
    first = next(iter(session.links.values()))
    try:
        await first.rights()
    except BrokerUnreachable as why:
        raise BrokerUnreachable(f"who may see this is asked at {first.name}, which is away: {why}") from None


def page_of(request: Request, count: int, size: int) -> tuple[int, int]:
    """The page that the address names, and how many there are; behind the last one it is the last one, since a list
    gets shorter while somebody looks at it."""
    pages = max((count + size - 1) // size, 1)
    text = request.query_params.get("page", "")
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0
    return min(number, pages - 1), pages


def chosen(request: Request, session: Session) -> list[BrokerLink]:
    """The brokers that the page is about: the one that `broker` names, or all."""
    wanted = request.query_params.get("broker", "")
    return [link for name, link in session.links.items() if not wanted or name == wanted]
