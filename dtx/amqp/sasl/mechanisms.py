"""SASL mechanisms as conversations, without frames and I/O: PLAIN, SCRAM-SHA-256, EXTERNAL and ANONYMOUS.

A conversation is a coroutine. It awaits an `Exchange` to send octets to the peer and to get the peer's answer, and a
`Compute` to have work done that takes milliseconds and should not be done on an event loop. A server's conversation
ends with a `Verdict`, which two mechanisms give at once; a client's ends when the server has shown all that the
mechanism asks of it.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, Literal, Protocol, TypeAlias, TypeVar

from dtx.amqp.sasl import scram

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

T = TypeVar("T")

ANONYMOUS: Final = "ANONYMOUS"
EXTERNAL: Final = "EXTERNAL"
PLAIN: Final = "PLAIN"
SCRAM: Final = scram.MECHANISM

NONCE_OCTETS: Final = 18


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a connection acts for; the empty name is that of an anonymous user (ANONYMOUS). `proven` is the verifier of
    the password that has shown it, None where there was no password; it is no part of who it is."""

    name: str
    proven: scram.Verifier | None = field(default=None, compare=False, repr=False)

    @property
    def is_anonymous(self) -> bool:
        """Whether the peer did not say who it is."""
        return not self.name

    def __str__(self) -> str:
        return self.name or "anonymous"


@dataclass(frozen=True, slots=True)
class Exchange:
    """Awaited by a conversation: sends these octets to the other side, and answers what it sends back."""

    octets: bytes

    def __await__(self) -> Generator[Exchange, bytes, bytes]:
        return (yield self)


class Compute(Generic[T]):
    """Awaited by a conversation: work of some milliseconds, which is done elsewhere. Answers what the work returns."""

    __slots__ = ("work",)

    def __init__(self, work: Callable[[], T]) -> None:
        self.work: Final = work

    def __await__(self) -> Generator[Compute[T], T, T]:
        return (yield self)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a server's conversation ended: with an identity or None, what the outcome frame tells beside its
    code, and the reason of a refusal for the server's own log. `tried`: for this name a wrong password was given."""

    identity: Identity | None
    additional: bytes = b""
    reason: str = ""
    tried: str = ""


ServerConversation: TypeAlias = "Coroutine[Exchange | Compute[object], object, Verdict]"
ClientConversation: TypeAlias = "Coroutine[Exchange | Compute[object], object, None]"
"""A mechanism's side of the conversation. Who drives it carries out what it awaits, and sends it the answer."""


RESERVED: Final = frozenset({"anonymous", "*"})
"""Names that stand for anonymous users and for all users, in a server's table of permissions."""


class Verifiers(Protocol):
    """A server's data about its users."""

    def verifiers(self, user: str) -> tuple[scram.Verifier, ...]:
        """The verifiers of the passwords that the user has at this moment, at most two, the newest first; none when
        there is no such user. Two have one salt and one number of iterations, because SCRAM names these before the
        client has shown which password it has."""
        ...

    def decoy(self, user: str) -> scram.Verifier:
        """A verifier that accepts nothing, always the same one for a name, and that no client can tell from
        one of a user."""
        ...

    def remembered(self, user: str, password: str) -> scram.Verifier | None:
        """The user's verifier that accepts this password, as far as that is known without a computation."""
        ...

    def remember(self, user: str, verifier: scram.Verifier, password: str) -> None:
        """A computation has found that `verifier`, which is one of the user's, accepts this password."""
        ...


def anonymous_server() -> Verdict:
    """The user is anonymous; the trace text that the peer may send proves nothing."""
    return Verdict(Identity(""))


def external_server(initial: bytes, certified: str | None) -> Verdict:
    """The identity that the TLS certificate gave; the peer may repeat it, and name no other."""
    asked = initial.decode("utf-8", "replace")
    if certified in RESERVED:
        return Verdict(None, reason=f"the certificate's common name is {certified!r}, which is not the name of a user")
    if certified is None:
        return Verdict(None, reason="EXTERNAL without a client certificate that names an identity")
    if asked not in {"", certified}:
        return Verdict(None, reason=f"certified as {certified!r}, asked to act as {asked!r}")
    return Verdict(Identity(certified))


async def plain_server(initial: bytes, users: Verifiers) -> Verdict:
    """authzid NUL name NUL password. Unknown names take as long as wrong passwords."""
    parts = initial.decode("utf-8", "replace").split("\0")
    if len(parts) != 3 or not parts[1]:
        return Verdict(None, reason="malformed PLAIN message")
    authzid, given, password = parts
    try:
        name = scram.saslprep(given)
    except scram.ScramError as error:
        return Verdict(None, reason=str(error))
    proven = users.remembered(name, password)
    if proven is None:
        asked = users.verifiers(name) or (users.decoy(name),)
        accepted = await Compute(lambda: scram.accepting(asked, password))
        proven = _still_held(users, name, accepted)
        if proven is None:
            return Verdict(None, reason=f"wrong name or password for {name!r}", tried=name)
        users.remember(name, proven, password)

    if authzid not in {"", given}:
        return Verdict(None, reason=f"{name!r} asked to act as {authzid!r}")
    return Verdict(Identity(name, proven))


def _still_held(users: Verifiers, name: str, accepted: scram.Verifier | Literal[False]) -> scram.Verifier | None:
    """The verifier that has accepted, unless it was no user's, or its password has ended since it was asked."""
    return accepted if accepted and accepted in users.verifiers(name) else None


async def scram_server(initial: bytes, users: Verifiers, nonce: Callable[[int], bytes]) -> Verdict:
    """RFC 5802. An unknown name sees the same exchange as a wrong password."""
    refused = b"e=invalid-proof"
    try:
        first = scram.ClientFirst.parse(initial)
        name = scram.saslprep(first.user)
        asked = users.verifiers(name) or (users.decoy(name),)
        server_first = scram.ServerFirst(
            first.nonce + scram.encoded(nonce(NONCE_OCTETS)), asked[0].salt, asked[0].iterations
        )
        answer = await Exchange(str(server_first).encode())
        final = scram.ClientFinal.parse(answer)
    except scram.ScramError as error:
        return Verdict(None, b"e=other-error", str(error))

    message = f"{first.bare},{server_first},{final.without_proof}"
    proven = _still_held(users, name, scram.proven(asked, message, final.proof))
    if not hmac.compare_digest(final.nonce.encode(), server_first.nonce.encode()):
        return Verdict(None, refused, f"{name!r} answered with another nonce")
    if final.binding != first.header.encode():
        return Verdict(None, b"e=channel-bindings-dont-match", f"{name!r} answered with another header")
    if proven is None:
        return Verdict(None, refused, f"wrong name or password for {name!r}", name)
    if first.authzid not in {"", first.user}:
        return Verdict(None, b"e=other-error", f"{name!r} asked to act as {first.authzid!r}")
    signature = scram.server_signature(proven.server_key, message)
    return Verdict(Identity(name, proven), b"v=" + scram.encoded(signature).encode())


async def wordless_client() -> None:
    """ANONYMOUS says nothing, EXTERNAL leaves it to the certificate."""
    await Exchange(b"")


async def plain_client(user: str, password: str) -> None:
    """Tells the password: only over TLS, or where it was allowed by hand."""
    await Exchange(f"\0{user}\0{password}".encode())


async def scram_client(user: str, password: str, nonce: Callable[[int], bytes]) -> None:
    """RFC 5802; ends only when the server has proved that it knows the password's verifier. ScramError, before anything
    is sent: no one can have this name or password."""
    scram.saslprep(password)
    own = scram.encoded(nonce(NONCE_OCTETS))
    bare = f"n={scram.escaped(scram.saslprep(user))},r={own}"
    answer = await Exchange((scram.GS2_HEADER + bare).encode())
    first = scram.ServerFirst.parse(answer, own)
    salted = await Compute(lambda: scram.salted_password(password, first.salt, first.iterations))
    without_proof = f"c={scram.encoded(scram.GS2_HEADER.encode())},r={first.nonce}"
    message = f"{bare},{answer.decode()},{without_proof}"
    proof = scram.encoded(scram.client_proof(salted, message))
    answer = await Exchange(f"{without_proof},p={proof}".encode())
    expected = scram.server_signature(hmac.digest(salted, b"Server Key", "sha256"), message)
    if not hmac.compare_digest(scram.decoded_signature(answer), expected):
        raise scram.ScramError("the server could not prove that it knows the password")
