"""These tests cover the SASL layer: each mechanism from end to end, every refusal, the limits, and proton's own client
and server.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proton import SASL, Event

from dtx.amqp.encoding import encode
from dtx.amqp.frames import AMQP_HEADER
from dtx.amqp.sasl import ClientPolicy, SaslClient, SaslServer, ServerPolicy
from dtx.amqp.sasl.client import CLIENT_LEGAL
from dtx.amqp.sasl.layer import MAX_AHEAD, MAX_FRAME, SASL_HEADER, Frame, SaslError, State
from dtx.amqp.sasl.mechanisms import Identity
from dtx.amqp.sasl.scram import Verifier
from dtx.amqp.sasl.server import SERVER_LEGAL
from dtx.amqp.values import Array, Described, Symbol, Ubyte, Ulong, Value
from dtx.broker.access.credentials import Credentials
from tests.dtx.amqp.described import performative_at
from tests.dtx.amqp.engines import Engine, answer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dtx.amqp.sasl.layer import SaslLayer

SALT = bytes(range(16))
USERS = Credentials({"alice": Verifier.of("wonder,land=", SALT, 4096)}, b"secret")
EVERYTHING = ServerPolicy(USERS, anonymous=True)


def server_side(
    policy: ServerPolicy = EVERYTHING, *, encrypted: bool = True, certified: str | None = None
) -> SaslServer:
    return SaslServer(policy, encrypted=encrypted, certified=certified, nonce=os.urandom)


def client_side(policy: ClientPolicy, *, encrypted: bool = True) -> SaslClient:
    return SaslClient(policy, encrypted=encrypted, hostname="broker.example", nonce=os.urandom)


def settle(layer: SaslLayer) -> None:
    """What a shell does with computations."""
    while layer.computation is not None:
        layer.computed(layer.computation())


def talk(client: SaslClient, server: SaslServer, at_once: int = 1 << 20) -> None:
    """Passes octets back and forth, `at_once` of them, until both are silent."""
    while True:
        to_server, to_client = client.output(), server.output()
        if not to_server and not to_client:
            return
        for data, layer in ((to_server, server), (to_client, client)):
            for start in range(0, len(data), at_once):
                layer.feed(data[start : start + at_once])
                settle(layer)


@pytest.mark.parametrize("at_once", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    ("policy", "offered", "mechanism", "name"),
    [
        (ClientPolicy("alice", "wonder,land="), EVERYTHING, "SCRAM-SHA-256", "alice"),
        (ClientPolicy("alice", "wonder,land="), ServerPolicy(USERS, scram=False), "PLAIN", "alice"),
        (ClientPolicy(external=True), EVERYTHING, "EXTERNAL", "CN=node"),
        (ClientPolicy(), EVERYTHING, "ANONYMOUS", ""),
    ],
)
def test_each_mechanism(policy: ClientPolicy, offered: ServerPolicy, mechanism: str, name: str, at_once: int) -> None:
    client, server = client_side(policy), server_side(offered, certified="CN=node")
    talk(client, server, at_once)
    assert client.done, client.failure
    assert server.done, server.failure
    assert client.mechanism == server.mechanism == mechanism
    assert server.identity == Identity(name)
    assert server.identity.is_anonymous is (mechanism == "ANONYMOUS")


@pytest.mark.parametrize("offered", [EVERYTHING, ServerPolicy(USERS, scram=False)])
@pytest.mark.parametrize("policy", [ClientPolicy("alice", "wrong"), ClientPolicy("mallory", "wonder,land=")])
def test_wrong_credentials_are_refused_with_the_outcome_auth(policy: ClientPolicy, offered: ServerPolicy) -> None:
    client, server = client_side(policy), server_side(offered)
    talk(client, server)
    assert server.failed
    assert server.identity is None
    assert "wrong name or password" in str(server.failure)
    assert client.failed
    assert "the credentials were refused" in str(client.failure)
    assert "wonder" not in str(server.failure) + str(client.failure)


def test_a_name_that_is_not_there_is_asked_the_same_question_every_time() -> None:
    def salt_of(user: str) -> bytes:
        server = server_side()
        server.feed(SASL_HEADER + init("SCRAM-SHA-256", f"n,,n={user},r=abc".encode()))
        return server.output().split(b",s=")[1].split(b",")[0]

    assert salt_of("mallory") == salt_of("mallory")
    assert salt_of("mallory") != salt_of("marlon")
    assert len(salt_of("mallory")) == len(salt_of("alice"))


def frame(code: int, *items: Value) -> bytes:
    body = encode(Described(Ulong(code), list(items)))
    return struct.pack(">IBBH", 8 + len(body), 2, 1, 0) + body


def init(mechanism: str, initial: bytes | None) -> bytes:
    return frame(0x41, Symbol(mechanism), initial)


def outcome_of(server: SaslServer) -> int | None:
    """The code of the outcome frame at the end of what the server sends."""
    sent = server.output()
    place = sent.rfind(b"\x00\x53\x44")
    return None if place < 0 else performative_at(sent, place)[1][0]


def test_a_client_that_leaves_sasl_out_is_anonymous_where_that_is_allowed() -> None:
    server = server_side()
    server.feed(AMQP_HEADER[:3])
    assert server.output() == b""
    server.feed(AMQP_HEADER[3:] + b"frames")
    assert server.done
    assert server.identity == Identity("")
    assert server.rest == AMQP_HEADER + b"frames"
    assert server.output() == b""


def test_and_refused_where_it_is_not_with_the_header_that_would_do() -> None:
    """In this case, the server MUST send a protocol header with an acceptable protocol id (and version) and then close
    the socket."""
    server = server_side(ServerPolicy(USERS))
    server.feed(AMQP_HEADER)
    assert server.failed
    assert server.output() == SASL_HEADER


@pytest.mark.parametrize("start", [b"GET", b"AMQP\x02\x01\x00\x00", b"\x16\x03\x01", b"AMQP\x03\x01\x00\x01"])
def test_other_beginnings_are_refused_at_once(start: bytes) -> None:
    server = server_side()
    server.feed(start)
    assert server.failed
    assert server.output() == SASL_HEADER


@pytest.mark.parametrize(
    ("start", "told"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "the peer began with TLS, and this port is without"),
        (b"AMQP\x00\x00\x09\x01", "the peer began with AMQP 0-9-1; only AMQP 1.0 is spoken here"),
        (AMQP_HEADER, "the peer began without SASL, which is demanded"),
        (b"GET / HT", "the peer began with b'GET / HT', which is not AMQP 1.0"),
    ],
)
def test_another_beginning_is_called_by_its_name(start: bytes, told: str) -> None:
    """An operator reads it in the log, and knows what the client is configured for."""
    server = server_side(ServerPolicy(USERS))
    server.feed(start)
    assert told in str(server.failure)


def test_amqps_first_octets_may_come_with_the_last_of_sasl() -> None:
    server = server_side()
    server.feed(SASL_HEADER + init("ANONYMOUS", b"trace") + AMQP_HEADER + b"open")
    assert server.done
    assert server.rest == AMQP_HEADER + b"open"
    assert outcome_of(server) == 0


@pytest.mark.parametrize(
    ("encrypted", "certified", "policy", "offered"),
    [
        (True, None, EVERYTHING, ["SCRAM-SHA-256", "PLAIN", "ANONYMOUS"]),
        (False, None, EVERYTHING, ["SCRAM-SHA-256", "ANONYMOUS"]),
        (True, "CN=node", EVERYTHING, ["EXTERNAL", "SCRAM-SHA-256", "PLAIN", "ANONYMOUS"]),
        (False, None, ServerPolicy(USERS, plain_without_tls=True), ["SCRAM-SHA-256", "PLAIN"]),
        (True, None, ServerPolicy(None, anonymous=True), ["ANONYMOUS"]),
        (True, "CN=node", ServerPolicy(USERS, external=False, plain=False), ["SCRAM-SHA-256"]),
    ],
)
def test_what_is_offered(encrypted: bool, certified: str | None, policy: ServerPolicy, offered: list[str]) -> None:
    server = server_side(policy, encrypted=encrypted, certified=certified)
    server.feed(SASL_HEADER)
    sent = server.output()
    assert sent.startswith(SASL_HEADER)
    assert performative_at(sent, 16)[1] == [offered]


def test_where_nothing_can_be_offered_the_connection_ends() -> None:
    server = server_side(ServerPolicy(USERS, scram=False), encrypted=False)
    server.feed(SASL_HEADER)
    assert server.failed
    assert "no TLS" in str(server.failure)


@pytest.mark.parametrize(
    ("mechanism", "initial"),
    [
        ("PLAIN", b"\0alice\0wonder,land="),
        ("EXTERNAL", b""),
        ("GSSAPI", b""),
        ("plain", b"\0alice\0wonder,land="),
        ("", b""),
    ],
)
def test_a_mechanism_that_was_not_offered_is_refused(mechanism: str, initial: bytes) -> None:
    server = server_side(encrypted=False)
    server.feed(SASL_HEADER + init(mechanism, initial))
    settle(server)
    assert server.failed
    assert outcome_of(server) == 1


@pytest.mark.parametrize(
    "initial",
    [
        b"",
        b"alice",
        b"\0alice",
        b"\0alice\0wonder,land=\0",
        b"\0\0wonder,land=",
        b"\xff\0\xff\0\xff",
        b"root\0alice\0wonder,land=",
    ],
)
def test_malformed_plain_messages_are_refused(initial: bytes) -> None:
    server = server_side()
    server.feed(SASL_HEADER + init("PLAIN", initial))
    settle(server)
    assert server.failed
    assert outcome_of(server) == 1


def test_one_may_act_as_oneself() -> None:
    server = server_side()
    server.feed(SASL_HEADER + init("PLAIN", b"alice\0alice\0wonder,land="))
    settle(server)
    assert server.done


@pytest.mark.parametrize(("asked", "accepted"), [(b"", True), (b"CN=node", True), (b"CN=root", False)])
def test_external_is_who_the_certificate_says(asked: bytes, accepted: bool) -> None:
    server = server_side(certified="CN=node")
    server.feed(SASL_HEADER + init("EXTERNAL", asked))
    assert server.done is accepted
    assert outcome_of(server) == (0 if accepted else 1)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_an_initial_response_that_is_left_out_is_asked_for(mechanism: str) -> None:
    server = server_side()
    server.feed(SASL_HEADER + init(mechanism, None))
    assert server.output().endswith(frame(0x42, b""))
    server.feed(frame(0x43, b"\0alice\0wonder,land=" if mechanism == "PLAIN" else b"rubbish"))
    settle(server)
    assert server.done is (mechanism == "PLAIN")


def test_there_is_one_try() -> None:
    server = server_side()
    server.feed(SASL_HEADER + init("PLAIN", b"\0alice\0wrong"))
    settle(server)
    assert server.failed
    server.output()
    server.feed(init("PLAIN", b"\0alice\0wonder,land="))
    assert server.failed
    assert server.output() == b""


@pytest.mark.parametrize("frames", [sorted(SERVER_LEGAL, key=str), sorted(CLIENT_LEGAL, key=str)])
def test_the_tables_are_disjoint(frames: list[tuple[State, Frame]]) -> None:
    assert len(frames) >= 2
    assert not SERVER_LEGAL & CLIENT_LEGAL


@pytest.mark.parametrize("code", [0x40, 0x42, 0x43, 0x44, 0x45, 0x10, 0x100])
def test_a_server_takes_no_other_frame_first(code: int) -> None:
    server = server_side()
    body = b"\0\x80" + code.to_bytes(8, "big") + b"\x45"
    server.feed(SASL_HEADER + struct.pack(">IBBH", 8 + len(body), 2, 1, 0) + body)
    assert server.failed


@pytest.mark.parametrize(
    "octets",
    [
        struct.pack(">IBBH", MAX_FRAME + 1, 2, 1, 0),
        struct.pack(">IBBH", 2**32 - 1, 2, 1, 0),
        struct.pack(">IBBH", 8, 2, 1, 0),
        struct.pack(">IBBH", 12, 3, 1, 0) + b"\0" * 4,
        struct.pack(">IBBH", 7, 2, 1, 0),
        struct.pack(">IBBH", 12, 1, 1, 0) + b"\0\x53\x41\x45",
        struct.pack(">IBBH", 12, 2, 0, 0) + b"\0\x53\x41\x45",
        struct.pack(">IBBH", 9, 2, 1, 0) + b"\x40",
        struct.pack(">IBBH", 12, 2, 1, 0) + b"\0\x53\x41\x40",
        struct.pack(">IBBH", 13, 2, 1, 0) + b"\0\x53\x41\x45\x45",
        frame(0x41, b"PLAIN"),
        frame(0x41, Symbol("PLAIN"), "x"),
    ],
)
def test_malformed_frames_end_the_exchange(octets: bytes) -> None:
    server = server_side()
    server.feed(SASL_HEADER + octets)
    assert server.failed
    assert isinstance(server.failure, SaslError)


def test_a_truncated_frame_waits_and_is_bounded() -> None:
    server = server_side()
    octets = init("ANONYMOUS", b"x" * 400)
    server.feed(SASL_HEADER + octets[:-1])
    assert not server.done
    assert not server.failed
    server.feed(octets[-1:])
    assert server.done


def test_a_flood_during_a_computation_ends_the_exchange() -> None:
    server = server_side()
    server.feed(SASL_HEADER + init("PLAIN", b"\0alice\0another password"))
    assert server.computation is not None
    server.feed(b"x" * MAX_AHEAD)
    server.feed(b"x")
    assert server.failed


@given(st.binary(max_size=600), st.booleans())
def test_rubbish_only_fails(octets: bytes, framed: bool) -> None:
    server, client = server_side(), client_side(ClientPolicy("alice", "wonder,land="))
    for layer in (server, client):
        body = struct.pack(">IBBH", 8 + len(octets), 2, 1, 0) + octets if framed else octets
        layer.feed(SASL_HEADER + body)
        settle(layer)
        assert not layer.done


@pytest.mark.parametrize(
    ("policy", "encrypted", "offered", "says"),
    [
        (ClientPolicy("alice", "x"), False, ["PLAIN"], "use TLS, or allow it"),
        (ClientPolicy("alice", "x"), True, ["ANONYMOUS", "GSSAPI"], "offers ANONYMOUS, GSSAPI"),
        (ClientPolicy(), True, ["PLAIN", "EXTERNAL"], "give a user and password, or a client certificate"),
        (ClientPolicy(external=True), True, ["PLAIN"], "offers PLAIN"),
    ],
)
def test_a_client_says_what_is_missing(policy: ClientPolicy, encrypted: bool, offered: list[str], says: str) -> None:
    client = client_side(policy, encrypted=encrypted)
    client.feed(SASL_HEADER + frame(0x40, Array(map(Symbol, offered))))
    assert client.failed
    assert says in str(client.failure)


def test_a_client_may_allow_plain_without_tls() -> None:
    client = client_side(ClientPolicy("alice", "x", plain_without_tls=True), encrypted=False)
    client.feed(SASL_HEADER + frame(0x40, Symbol("PLAIN")))
    assert client.mechanism == "PLAIN"
    assert b"\0alice\0x" in client.output()


def scram_client_up_to_proof() -> SaslClient:
    client = client_side(ClientPolicy("alice", "wonder,land="))
    client.feed(SASL_HEADER + frame(0x40, Symbol("SCRAM-SHA-256")))
    nonce = client.output().split(b",r=")[1].split(b"\xa1")[0]
    challenge = b"r=" + nonce + b"more,s=AAECAwQFBgcICQoLDA0ODw==,i=4096"
    client.feed(frame(0x42, challenge))
    settle(client)
    assert b",p=" in client.output()
    return client


@pytest.mark.parametrize(
    "octets",
    [
        frame(0x44, Ubyte(0)),
        frame(0x44, Ubyte(0), b"v=AAAA"),
        frame(0x42, b"v=AAAA"),
    ],
)
def test_a_client_trusts_no_success_without_proof(octets: bytes) -> None:
    client = scram_client_up_to_proof()
    client.feed(octets)
    assert client.failed


def test_a_client_trusts_no_success_that_comes_too_early() -> None:
    client = client_side(ClientPolicy("alice", "wonder,land="))
    client.feed(SASL_HEADER + frame(0x40, Symbol("SCRAM-SHA-256")))
    client.feed(frame(0x44, Ubyte(0)))
    assert client.failed


def test_a_server_that_proves_itself_in_a_challenge_is_believed_too() -> None:
    client, server = client_side(ClientPolicy("alice", "wonder,land=")), server_side()
    server.feed(client.output())
    client.feed(server.output())
    server.feed(client.output())
    client.feed(server.output())
    settle(client)
    server.feed(client.output())
    sent = server.output()
    signature = performative_at(sent, 8)[1][1]
    client.feed(frame(0x42, signature))
    assert client.output() == frame(0x43, b"")
    client.feed(frame(0x44, Ubyte(0)))
    assert client.done


@pytest.mark.parametrize(("code", "says"), [(1, "refused"), (2, "system error"), (4, "try again"), (77, "outcome 77")])
def test_a_client_tells_what_an_outcome_means(code: int, says: str) -> None:
    client = client_side(ClientPolicy("alice", "x"))
    client.feed(SASL_HEADER + frame(0x40, Symbol("PLAIN")) + frame(0x44, Ubyte(code)))
    assert client.failed
    assert says in str(client.failure)
    assert "PLAIN as 'alice'" in str(client.failure)


def test_a_client_refuses_a_server_without_sasl() -> None:
    client = client_side(ClientPolicy())
    client.feed(AMQP_HEADER)
    assert client.failed


def test_a_password_is_not_shown() -> None:
    assert "wonder" not in repr(ClientPolicy("alice", "wonder,land="))


class ProtonClient(Engine):
    """Proton with its own SASL."""

    def __init__(self, mechanism: str, user: str = "", password: str = "") -> None:
        super().__init__(server=False)
        self.transport.unbind()
        sasl: Any = self.transport.sasl()
        sasl.allowed_mechs(mechanism)
        sasl.allow_insecure_mechs = True
        if user:
            self.connection.user = user
            self.connection.password = password
        self.connection.hostname = "broker.example"
        self.transport.bind(self.connection)
        self.sasl = sasl


@pytest.fixture(params=[1 << 20, 3])
def at_once(request: pytest.FixtureRequest) -> Iterator[int]:
    """Octets that arrive together."""
    return request.param  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("mechanism", "user", "password", "accepted"),
    [
        ("ANONYMOUS", "", "", True),
        ("PLAIN", "alice", "wonder,land=", True),
        ("PLAIN", "alice", "wrong", False),
        ("EXTERNAL", "", "", True),
    ],
)
def test_protons_client(mechanism: str, user: str, password: str, accepted: bool, at_once: int) -> None:
    client, server = ProtonClient(mechanism, user, password), Engine(server=True)
    layer = server_side(certified="CN=node")
    client.connection.open()
    behind = b""
    while sent := client.output():
        for start in range(0, len(sent), at_once):
            if layer.done:
                behind += sent[start : start + at_once]
            else:
                layer.feed(sent[start : start + at_once])
                settle(layer)
        reply = layer.output()
        if layer.done:
            server.push(layer.rest + behind)
            layer.rest = behind = b""
            answer(server)
            reply += server.output()
        client.push(reply)
    assert layer.done is accepted
    assert client.sasl.outcome == (SASL.OK if accepted else SASL.AUTH)
    kinds = [kind for kind, _ in client.events()]
    assert (Event.CONNECTION_REMOTE_OPEN in kinds) is accepted


def test_protons_server() -> None:
    server = Engine(server=True)
    server.transport.unbind()
    sasl: Any = server.transport.sasl()
    sasl.allowed_mechs("ANONYMOUS")
    server.transport.bind(server.connection)
    layer, client = client_side(ClientPolicy()), Engine(server=False)
    client.connection.open()
    while not layer.done:
        server.push(layer.output())
        layer.feed(server.output())
        assert not layer.failed
    while sent := client.output():
        server.push(sent)
        answer(server)
        client.push(layer.rest + server.output())
        layer.rest = b""
    assert Event.CONNECTION_REMOTE_OPEN in [kind for kind, _ in client.events()]
