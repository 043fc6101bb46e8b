"""These tests cover the SASL layer: each mechanism from end to end, every refusal, the limits, and proton's own server;
its client logs in at a broker in `tests/interop/test_proton.py`.
"""

from __future__ import annotations

import os
import struct
from typing import Any

from proton import Event

from dtx.amqp.encoding import encode
from dtx.amqp.frames import AMQP_HEADER
from dtx.amqp.sasl import ClientPolicy, SaslClient, SaslServer, ServerPolicy
from dtx.amqp.sasl.client import CLIENT_LEGAL
from dtx.amqp.sasl.layer import MAX_AHEAD, MAX_FRAME, SASL_HEADER, SaslError, SaslLayer
from dtx.amqp.sasl.mechanisms import Identity
from dtx.amqp.sasl.scram import Verifier
from dtx.amqp.sasl.server import SERVER_LEGAL
from dtx.amqp.values import Array, Described, Symbol, Ubyte, Ulong, Value
from dtx.broker.access.credentials import Credentials
from tests.cases import each
from tests.dtx.amqp.described import performative_at
from tests.dtx.amqp.engines import Engine

SALT = bytes(range(16))
USERS = Credentials({"alice": Verifier.of("wonder,land=", SALT, 4096)}, b"secret")
EVERYTHING = ServerPolicy(USERS, anonymous=True)


def server_side(
    policy: ServerPolicy = EVERYTHING, *, encrypted: bool = True, certified: str | None = None
) -> SaslServer:
    return SaslServer(policy, encrypted=encrypted, certified=certified, nonce=os.urandom)


def client_side(policy: ClientPolicy, *, encrypted: bool = True) -> SaslClient:
    return SaslClient(policy, encrypted=encrypted, hostname="broker.example", nonce=os.urandom)


def served(
    octets: bytes, policy: ServerPolicy = EVERYTHING, *, encrypted: bool = True, certified: str | None = None
) -> SaslServer:
    """A server that was told these octets behind the header of SASL."""
    server = server_side(policy, encrypted=encrypted, certified=certified)
    server.feed(SASL_HEADER + octets)
    settle(server)
    return server


def offered(
    mechanisms: Value, *octets: bytes, policy: ClientPolicy | None = None, encrypted: bool = True
) -> SaslClient:
    """A client that was offered mechanisms, and then told more."""
    client = client_side(policy or ClientPolicy("alice", "wonder,land="), encrypted=encrypted)
    client.feed(SASL_HEADER + frame(0x40, mechanisms) + b"".join(octets))
    return client


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


@each("at_once", [1, 7, 1 << 20])
@each(
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


@each("offered", [EVERYTHING, ServerPolicy(USERS, scram=False)])
@each("policy", [ClientPolicy("alice", "wrong"), ClientPolicy("mallory", "wonder,land=")])
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
        server = served(init("SCRAM-SHA-256", f"n,,n={user},r=abc".encode()))
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


@each(
    ("start", "told"),
    [
        (b"GET", ""),
        (b"AMQP\x02\x01\x00\x00", ""),
        (b"\x16\x03\x01", ""),
        (b"AMQP\x03\x01\x00\x01", ""),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "the peer began with TLS, and this port is without"),
        (b"AMQP\x00\x00\x09\x01", "the peer began with AMQP 0-9-1; only AMQP 1.0 is spoken here"),
        (AMQP_HEADER, "the peer began without SASL, which is demanded"),
        (b"GET / HT", "the peer began with b'GET / HT', which is not AMQP 1.0"),
    ],
)
def test_another_beginning_is_refused_at_once_and_called_by_its_name(start: bytes, told: str) -> None:
    """An operator reads it in the log, and knows what the client is configured for."""
    server = server_side(ServerPolicy(USERS))
    server.feed(start)
    assert server.failed
    assert told in str(server.failure)
    assert server.output() == SASL_HEADER


def test_amqps_first_octets_may_come_with_the_last_of_sasl() -> None:
    server = served(init("ANONYMOUS", b"trace") + AMQP_HEADER + b"open")
    assert server.done
    assert server.rest == AMQP_HEADER + b"open"
    assert outcome_of(server) == 0


@each(
    ("encrypted", "certified", "policy", "mechanisms"),
    [
        (True, None, EVERYTHING, ["SCRAM-SHA-256", "PLAIN", "ANONYMOUS"]),
        (False, None, EVERYTHING, ["SCRAM-SHA-256", "ANONYMOUS"]),
        (True, "CN=node", EVERYTHING, ["EXTERNAL", "SCRAM-SHA-256", "PLAIN", "ANONYMOUS"]),
        (False, None, ServerPolicy(USERS, plain_without_tls=True), ["SCRAM-SHA-256", "PLAIN"]),
        (True, None, ServerPolicy(None, anonymous=True), ["ANONYMOUS"]),
        (True, "CN=node", ServerPolicy(USERS, external=False, plain=False), ["SCRAM-SHA-256"]),
    ],
)
def test_what_is_offered(encrypted: bool, certified: str | None, policy: ServerPolicy, mechanisms: list[str]) -> None:
    server = served(b"", policy, encrypted=encrypted, certified=certified)
    sent = server.output()
    assert sent.startswith(SASL_HEADER)
    assert performative_at(sent, 16)[1] == [mechanisms]


def test_where_nothing_can_be_offered_the_connection_ends() -> None:
    server = served(b"", ServerPolicy(USERS, scram=False), encrypted=False)
    assert server.failed
    assert "no TLS" in str(server.failure)


PLAIN = b"\0alice\0wonder,land="


@each(
    ("encrypted", "mechanism", "initial"),
    [
        *((False, mechanism, PLAIN) for mechanism in ("PLAIN", "plain")),  # which were not offered
        *((False, mechanism, b"") for mechanism in ("EXTERNAL", "GSSAPI", "")),
        (True, "PLAIN", b""),
        (True, "PLAIN", b"alice"),
        (True, "PLAIN", b"\0alice"),
        (True, "PLAIN", PLAIN + b"\0"),
        (True, "PLAIN", b"\0\0wonder,land="),
        (True, "PLAIN", b"\xff\0\xff\0\xff"),
        (True, "PLAIN", b"root" + PLAIN),
    ],
)
def test_mechanisms_that_were_not_offered_and_malformed_messages_are_refused(
    *, encrypted: bool, mechanism: str, initial: bytes
) -> None:
    server = served(init(mechanism, initial), encrypted=encrypted)
    assert server.failed
    assert outcome_of(server) == 1


@each(
    ("mechanism", "asked", "accepted"),
    [("PLAIN", b"alice" + PLAIN, True)]
    + [("EXTERNAL", asked, accepted) for asked, accepted in ((b"", True), (b"CN=node", True), (b"CN=root", False))],
)
def test_one_may_act_as_oneself(mechanism: str, asked: bytes, *, accepted: bool) -> None:
    """External is who the certificate says."""
    server = served(init(mechanism, asked), certified="CN=node")
    assert server.done is accepted
    assert outcome_of(server) == (0 if accepted else 1)


@each("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_an_initial_response_that_is_left_out_is_asked_for(mechanism: str) -> None:
    server = served(init(mechanism, None))
    assert server.output().endswith(frame(0x42, b""))
    server.feed(frame(0x43, PLAIN if mechanism == "PLAIN" else b"rubbish"))
    settle(server)
    assert server.done is (mechanism == "PLAIN")


def test_there_is_one_try() -> None:
    server = served(init("PLAIN", b"\0alice\0wrong"))
    assert server.failed
    server.output()
    server.feed(init("PLAIN", PLAIN))
    assert server.failed
    assert server.output() == b""


def test_the_tables_are_disjoint() -> None:
    assert len(SERVER_LEGAL) >= 2 <= len(CLIENT_LEGAL)
    assert not SERVER_LEGAL & CLIENT_LEGAL


def octets_of(body: bytes, doff: int = 2, kind: int = 1, size: int | None = None) -> bytes:
    return struct.pack(">IBBH", 8 + len(body) if size is None else size, doff, kind, 0) + body


@each(
    "octets",
    [
        *(  # a server takes no other frame first
            octets_of(b"\0\x80" + code.to_bytes(8, "big") + b"\x45")
            for code in (0x40, 0x42, 0x43, 0x44, 0x45, 0x10, 0x100)
        ),
        *(octets_of(b"", size=size) for size in (MAX_FRAME + 1, 2**32 - 1, 8, 7)),
        octets_of(b"\0" * 4, doff=3),
        octets_of(b"\0\x53\x41\x45", doff=1),
        octets_of(b"\0\x53\x41\x45", kind=0),
        *(octets_of(body) for body in (b"\x40", b"\0\x53\x41\x40", b"\0\x53\x41\x45\x45")),
        frame(0x41, b"PLAIN"),
        frame(0x41, Symbol("PLAIN"), "x"),
    ],
)
def test_malformed_frames_end_the_exchange(octets: bytes) -> None:
    server = served(octets)
    assert server.failed
    assert isinstance(server.failure, SaslError)


def test_a_truncated_frame_waits_and_is_bounded() -> None:
    octets = init("ANONYMOUS", b"x" * 400)
    server = served(octets[:-1])
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


@each(
    ("policy", "encrypted", "mechanisms", "says"),
    [
        (ClientPolicy("alice", "x"), False, ["PLAIN"], "use TLS, or allow it"),
        (ClientPolicy("alice", "x"), True, ["ANONYMOUS", "GSSAPI"], "offers ANONYMOUS, GSSAPI"),
        (ClientPolicy(), True, ["PLAIN", "EXTERNAL"], "give a user and password, or a client certificate"),
        (ClientPolicy(external=True), True, ["PLAIN"], "offers PLAIN"),
    ],
)
def test_a_client_says_what_is_missing(
    policy: ClientPolicy, *, encrypted: bool, mechanisms: list[str], says: str
) -> None:
    client = offered(Array(map(Symbol, mechanisms)), policy=policy, encrypted=encrypted)
    assert client.failed
    assert says in str(client.failure)


def test_a_client_may_allow_plain_without_tls() -> None:
    client = offered(Symbol("PLAIN"), policy=ClientPolicy("alice", "x", plain_without_tls=True), encrypted=False)
    assert client.mechanism == "PLAIN"
    assert b"\0alice\0x" in client.output()


SCRAM = Symbol("SCRAM-SHA-256")


@each("early", [True, False])
@each("octets", [frame(0x44, Ubyte(0)), frame(0x44, Ubyte(0), b"v=AAAA"), frame(0x42, b"v=AAAA")])
def test_a_client_trusts_no_success_without_proof(octets: bytes, *, early: bool) -> None:
    client = offered(SCRAM)
    if not early:
        nonce = client.output().split(b",r=")[1].split(b"\xa1")[0]
        client.feed(frame(0x42, b"r=" + nonce + b"more,s=AAECAwQFBgcICQoLDA0ODw==,i=4096"))
        settle(client)
        assert b",p=" in client.output()
    client.feed(octets)
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


@each(("code", "says"), [(1, "refused"), (2, "system error"), (4, "try again"), (77, "outcome 77")])
def test_a_client_tells_what_an_outcome_means(code: int, says: str) -> None:
    client = offered(Symbol("PLAIN"), frame(0x44, Ubyte(code)))
    assert client.failed
    assert says in str(client.failure)
    assert "PLAIN as 'alice'" in str(client.failure)
    assert "wonder" not in str(client.failure) + repr(ClientPolicy("alice", "wonder,land="))


def test_a_client_refuses_a_server_without_sasl() -> None:
    client = client_side(ClientPolicy())
    client.feed(AMQP_HEADER)
    assert client.failed


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
        server.connection.open()
        client.push(layer.rest + server.output())
        layer.rest = b""
    assert Event.CONNECTION_REMOTE_OPEN in [kind for kind, _ in client.events()]


@each(
    ("policy", "what_to_do"),
    [
        (ClientPolicy("alice", "x"), "leave user and password out of the URL, or start the broker with --users"),
        (ClientPolicy(external=True), "leave cert and key out of the URL, or give the broker client_ca"),
    ],
)
def test_a_client_that_is_offered_anonymous_alone_says_what_to_do(policy: ClientPolicy, what_to_do: str) -> None:
    client = offered(Array([Symbol("ANONYMOUS")]), policy=policy)
    assert str(client.failure).startswith("the server offers ANONYMOUS; it ")
    assert what_to_do in str(client.failure)
