"""The client's side of SASL."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dtx.amqp.protocol_detection import protocol_of
from dtx.amqp.sasl import mechanisms
from dtx.amqp.sasl.layer import OUTCOME_OK, SASL_HEADER, Frame, SaslError, SaslLayer, State, item
from dtx.amqp.sasl.mechanisms import Compute
from dtx.amqp.values import Symbol, Ubyte
from xa.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dtx.amqp.sasl.mechanisms import ClientConversation
    from dtx.amqp.values import Value

OUTCOME_MEANING: Final = {
    1: "the credentials were refused",
    2: "the server has a system error",
    3: "the server has a system error that an administrator has to correct",
    4: "the server has a temporary system error; try again",
}

CLIENT_LEGAL: Final = frozenset(
    {
        (State.MECHANISMS, Frame.MECHANISMS),
        (State.EXCHANGE, Frame.CHALLENGE),
        (State.EXCHANGE, Frame.OUTCOME),
    }
)


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
        raise SaslError(f"the server offers {printable(', '.join(offered)) or 'nothing'}{self._hint(offered)}")

    def _hint(self, offered: Sequence[str]) -> str:
        """What to do where none of the mechanisms offered will do."""
        if self.user and mechanisms.PLAIN in offered:
            return "; PLAIN would tell the password to everybody on the way: use TLS, or allow it"
        if self.user and mechanisms.ANONYMOUS in offered:
            return "; it has no users here: leave user and password out of the URL, or start the broker with --users"
        if self.external and mechanisms.ANONYMOUS in offered:
            return "; it asks for no certificate here: leave cert and key out of the URL, or give the broker client_ca"
        if not self.user and not self.external:
            return "; give a user and password, or a client certificate"
        return ""


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
            raise SaslError(f"the server begins with {protocol_of(header)}: it does not speak AMQP 1.0 with SASL here")
        self._input = self._input[len(SASL_HEADER) :]
        self.state = State.MECHANISMS

    def _handle(self, frame: Frame, body: list[Value]) -> None:
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

    def _converse(self, answer: object) -> None:
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
            self._send(Frame.RESPONSE, request.octets)
        else:
            self._begun = True
            self._send(Frame.INIT, Symbol(self.mechanism), request.octets, self._hostname)

    def _outcome(self, code: int | None, additional: bytes) -> None:
        if code != OUTCOME_OK:
            meaning = OUTCOME_MEANING.get(code or 0, f"outcome {code}")
            raise SaslError(f"{self.mechanism} as {self._policy.user or 'anonymous'!r}: {meaning}")
        if self._conversation is not None:
            try:
                self._conversation.send(additional)
            except StopIteration:
                self._conversation = None
            else:
                raise SaslError(f"the server ended {self.mechanism} too early")
        self.state = State.DONE
