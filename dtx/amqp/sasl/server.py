"""The server's side of SASL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dtx.amqp.frames import AMQP_HEADER
from dtx.amqp.sasl import mechanisms
from dtx.amqp.sasl.layer import OUTCOME_OK, SASL_HEADER, Frame, SaslError, SaslLayer, State, item
from dtx.amqp.sasl.mechanisms import Compute, Exchange, Identity, Verdict
from dtx.amqp.values import Array, Symbol, Ubyte
from xa.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.amqp.sasl.mechanisms import ServerConversation, Verifiers
    from dtx.amqp.values import Value

OUTCOME_AUTH: Final = 1

SERVER_LEGAL: Final = frozenset({(State.INIT, Frame.INIT), (State.EXCHANGE, Frame.RESPONSE)})


BEGINNINGS: Final = (
    (b"\x16\x03", "with TLS, and this port is without"),
    (AMQP_HEADER, "without SASL, which is demanded"),
    (b"AMQP\x00\x00\x09", "with AMQP 0-9-1; only AMQP 1.0 is spoken here"),
)
"""What peers begin with that are configured for something else."""


@dataclass(frozen=True, slots=True)
class ServerPolicy:
    """What a server offers. PLAIN is offered over TLS only, unless `plain_without_tls`."""

    users: Verifiers | None
    anonymous: bool = False
    external: bool = True
    plain: bool = True
    scram: bool = True
    plain_without_tls: bool = False

    def offered(self, encrypted: bool, certified: str | None) -> list[str]:
        """The mechanisms for one connection, the best one first."""
        offers = (
            (mechanisms.EXTERNAL, self.external and certified is not None),
            (mechanisms.SCRAM, self.scram and self.users is not None),
            (
                mechanisms.PLAIN,
                self.plain and self.users is not None and (encrypted or self.plain_without_tls),
            ),
            (mechanisms.ANONYMOUS, self.anonymous),
        )
        return [name for name, offered in offers if offered]


class SaslServer(SaslLayer):
    """The server's side of one connection. `encrypted` and `certified`, the identity in the client's
    certificate, come from the shell, and so does `nonce(octets)`. Once `done`, `identity` is set."""

    def __init__(
        self, policy: ServerPolicy, *, encrypted: bool, certified: str | None, nonce: Callable[[int], bytes]
    ) -> None:
        super().__init__(SERVER_LEGAL)
        self.identity: Identity | None = None
        self.mechanism = ""
        self.tried = ""
        """The name for which a wrong password was given."""
        self._policy = policy
        self._certified = certified
        self._offered = policy.offered(encrypted, certified)
        self._nonce = nonce
        self._conversation: ServerConversation | None = None

    def _header(self, header: bytes) -> None:
        if header == AMQP_HEADER and self._policy.anonymous:
            self.mechanism = mechanisms.ANONYMOUS
            self.identity = mechanisms.anonymous_server().identity
            self.state = State.DONE
            return
        self._output.append(SASL_HEADER)  # also where this is all we answer: it says what we would take
        if header != SASL_HEADER:
            raise SaslError(f"the peer began {_described(header)}")
        if not self._offered:
            raise SaslError("no mechanism can be offered here: the connection has no TLS, or no certificate")
        self._input = self._input[len(SASL_HEADER) :]
        self._send(Frame.MECHANISMS, Array(map(Symbol, self._offered)))
        self.state = State.INIT

    def _handle(self, frame: Frame, body: list[Value]) -> None:
        if frame is Frame.RESPONSE:
            self._converse(item(body, 0, bytes) or b"")
            return
        self.mechanism = str(item(body, 0, Symbol) or "")
        begun = self._begin(item(body, 1, bytes))
        self.state = State.EXCHANGE
        if isinstance(begun, Verdict):
            self._conclude(begun)
        else:
            self._conversation = begun
            self._converse(None)

    def _begin(self, initial: bytes | None) -> Verdict | ServerConversation:
        users = self._policy.users
        if self.mechanism in self._offered:
            if self.mechanism == mechanisms.ANONYMOUS:
                return mechanisms.anonymous_server()
            if self.mechanism == mechanisms.EXTERNAL:
                return mechanisms.external_server(initial or b"", self._certified)
            if self.mechanism == mechanisms.PLAIN and users is not None:
                return _from_initial(initial, lambda first: mechanisms.plain_server(first, users))
            if self.mechanism == mechanisms.SCRAM and users is not None:
                return _from_initial(initial, lambda first: mechanisms.scram_server(first, users, self._nonce))
        return Verdict(None, reason=f"mechanism {self.mechanism[:40]!r} is not offered")

    def _converse(self, answer: object) -> None:
        if self._conversation is None:
            raise SaslError("no conversation is going on")
        try:
            request = self._conversation.send(answer)
        except StopIteration as end:
            verdict: Verdict = end.value
            self._conclude(verdict)
            return
        if isinstance(request, Compute):
            self._compute(request)
        else:
            self._send(Frame.CHALLENGE, request.octets)

    def _conclude(self, verdict: Verdict) -> None:
        code = OUTCOME_AUTH if verdict.identity is None else OUTCOME_OK
        additional = [verdict.additional] if verdict.additional else []
        self._send(Frame.OUTCOME, Ubyte(code), *additional)
        if verdict.identity is None:
            self.tried = verdict.tried
            raise SaslError(f"{printable(self.mechanism, 40)}: {verdict.reason}")
        self.identity = verdict.identity
        self.state = State.DONE


async def _from_initial(initial: bytes | None, begin: Callable[[bytes], ServerConversation]) -> Verdict:
    """A conversation that the client begins; where it left its beginning out, it is asked for it."""
    if initial is None:
        initial = await Exchange(b"")
    return await begin(initial)


def _described(header: bytes) -> str:
    """How the peer began, for the log."""
    for beginning, protocol in BEGINNINGS:
        if header.startswith(beginning):
            return protocol
    return f"with {header!r}, which is not AMQP 1.0"
