"""SASL in front of proton, whose own SASL stays off: the server's and the client's side, without I/O.

A client may leave SASL out and begin with AMQP's own header: it is taken as ANONYMOUS, where that is allowed.
There is one try per connection. Which frame is legal when stands in two tables. A shell sends `output`, feeds
what it receives, carries out a `computation` (off its event loop) and tells the result by `computed`, until
the layer is `done`, with AMQP's first bytes in `rest`, or `failed`, with the reason in `failure`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from dtx.protocol import mechanisms
from dtx.protocol.frames import AMQP_HEADER
from dtx.protocol.mechanisms import Compute, Identity, Verdict
from dtx.protocol.plain import plain
from dtx.protocol.sasl_layer import SASL_HEADER, Frame, SaslError, SaslLayer, State, item
from dtx.protocol.values import Array, Symbol, Ubyte

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dtx.protocol.mechanisms import ClientConversation, ServerConversation, Verifiers

OUTCOME_OK: Final = 0
OUTCOME_AUTH: Final = 1
OUTCOME_MEANING: Final = {
    1: "the credentials were refused",
    2: "the server has a system error",
    3: "the server has a system error that needs somebody to mend it",
    4: "the server has a temporary system error; try again",
}

SERVER_LEGAL: Final = frozenset({(State.INIT, Frame.INIT), (State.EXCHANGE, Frame.RESPONSE)})
CLIENT_LEGAL: Final = frozenset(
    {
        (State.MECHANISMS, Frame.MECHANISMS),
        (State.EXCHANGE, Frame.CHALLENGE),
        (State.EXCHANGE, Frame.OUTCOME),
    }
)


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
            raise SaslError(f"the peer began with {header!r}; SASL is demanded")
        if not self._offered:
            raise SaslError("no mechanism can be offered here: the connection has no TLS, or no certificate")
        self._input = self._input[len(SASL_HEADER) :]
        self._send(Frame.MECHANISMS, Array(map(Symbol, self._offered)))
        self.state = State.INIT

    def _handle(self, frame: Frame, body: list[Any]) -> None:
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

    def _converse(self, answer: Any) -> None:
        if self._conversation is None:
            raise SaslError("no conversation is going on")
        try:
            request = self._conversation.send(answer)
        except StopIteration as end:
            self._conclude(end.value)
            return
        if isinstance(request, Compute):
            self._compute(request)
        else:
            self._send(Frame.CHALLENGE, request)

    def _conclude(self, verdict: Verdict) -> None:
        code = OUTCOME_AUTH if verdict.identity is None else OUTCOME_OK
        additional = [verdict.additional] if verdict.additional else []
        self._send(Frame.OUTCOME, Ubyte(code), *additional)
        if verdict.identity is None:
            raise SaslError(f"{plain(self.mechanism, 40)}: {verdict.reason}")
        self.identity = verdict.identity
        self.state = State.DONE


def _from_initial(initial: bytes | None, begin: Callable[[bytes], ServerConversation]) -> ServerConversation:
    """A conversation that the client begins; where it left its beginning out, it is asked for it."""
    if initial is None:
        initial = yield b""
    return (yield from begin(initial))


@dataclass(frozen=True, slots=True)
class ClientPolicy:
    """How a client shows who it is: with its certificate, with name and password, or not at all."""

    user: str = ""
    password: str = field(default="", repr=False)
    external: bool = False
    plain_without_tls: bool = False

    def chosen(self, offered: Sequence[str], encrypted: bool) -> str:
        """The best of the mechanisms offered; SaslError when none of them will do."""
        wanted = (
            (mechanisms.EXTERNAL, self.external),
            (mechanisms.SCRAM, bool(self.user)),
            (mechanisms.PLAIN, bool(self.user) and (encrypted or self.plain_without_tls)),
            (mechanisms.ANONYMOUS, not self.user and not self.external),
        )
        for name, usable in wanted:
            if usable and name in offered:
                return name
        hint = ""
        if self.user and mechanisms.PLAIN in offered:
            hint = "; PLAIN would tell the password to everybody on the way: use TLS, or allow it"
        elif not self.user:
            hint = "; give a user and password, or a client certificate"
        raise SaslError(f"the server offers {plain(', '.join(offered)) or 'nothing'}{hint}")


class SaslClient(SaslLayer):
    """The client's side of one connection."""

    def __init__(self, policy: ClientPolicy, *, encrypted: bool, hostname: str, nonce: Callable[[int], bytes]) -> None:
        super().__init__(CLIENT_LEGAL)
        self.mechanism = ""
        self._policy = policy
        self._encrypted = encrypted
        self._hostname = hostname
        self._nonce = nonce
        self._conversation: ClientConversation | None = None
        self._begun = False
        self._output.append(SASL_HEADER)

    def _header(self, header: bytes) -> None:
        if header != SASL_HEADER:
            raise SaslError(f"the server began with {header!r}: it does not speak SASL here")
        self._input = self._input[len(SASL_HEADER) :]
        self.state = State.MECHANISMS

    def _handle(self, frame: Frame, body: list[Any]) -> None:
        if frame is Frame.MECHANISMS:
            offered = body[0] if body else []
            names = offered if isinstance(offered, list) else [offered]
            self.mechanism = self._policy.chosen([str(name) for name in names], self._encrypted)
            self._conversation = self._conversation_of(self.mechanism)
            self.state = State.EXCHANGE
            self._converse(None)
        elif frame is Frame.CHALLENGE:
            self._converse(item(body, 0, bytes) or b"")
        else:
            self._outcome(item(body, 0, Ubyte), item(body, 1, bytes) or b"")

    def _conversation_of(self, mechanism: str) -> ClientConversation:
        policy = self._policy
        if mechanism == mechanisms.SCRAM:
            return mechanisms.scram_client(policy.user, policy.password, self._nonce)
        if mechanism == mechanisms.PLAIN:
            return mechanisms.plain_client(policy.user, policy.password)
        return mechanisms.wordless_client()

    def _converse(self, answer: Any) -> None:
        if self._conversation is None:
            raise SaslError(f"the server goes on after the end of {self.mechanism}")
        try:
            request = self._conversation.send(answer)
        except StopIteration:
            self._conversation = None
            self._send(Frame.RESPONSE, b"")
            return
        if isinstance(request, Compute):
            self._compute(request)
        elif self._begun:
            self._send(Frame.RESPONSE, request)
        else:
            self._begun = True
            self._send(Frame.INIT, Symbol(self.mechanism), request, self._hostname)

    def _outcome(self, code: int | None, additional: bytes) -> None:
        if code != OUTCOME_OK:
            meaning = OUTCOME_MEANING.get(code or 0, f"outcome {code}")
            raise SaslError(f"{self.mechanism} as {self._policy.user or 'nobody'!r}: {meaning}")
        if self._conversation is not None:
            try:
                self._conversation.send(additional)
            except StopIteration:
                self._conversation = None
            else:
                raise SaslError(f"the server ended {self.mechanism} too early")
        self.state = State.DONE
