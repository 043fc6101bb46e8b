"""These tests cover SCRAM-SHA-256: the RFC's own example, verifiers, and malformed messages."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtx.amqp.sasl import scram
from dtx.amqp.sasl.mechanisms import Compute, Exchange, Verdict, scram_client, scram_server
from dtx.amqp.sasl.scram import (
    ClientFinal,
    ClientFirst,
    ScramError,
    ServerFirst,
    Verifier,
    accepting,
    client_proof,
    encoded,
    escaped,
    proven,
    salted_password,
    saslprep,
    server_signature,
)
from tests.cases import each

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
NONCE = CLIENT_NONCE + "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FIRST = f"n,,n=user,r={CLIENT_NONCE}".encode()
SERVER_FIRST = f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
CLIENT_FINAL = f"c=biws,r={NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
MESSAGE = f"n=user,r={CLIENT_NONCE},{SERVER_FIRST.decode()},c=biws,r={NONCE}"


def test_the_example_of_rfc_7677() -> None:
    salted = salted_password("pencil", SALT, 4096)
    verifier = Verifier.of("pencil", SALT, 4096)
    assert encoded(client_proof(salted, MESSAGE)) == "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert proven((verifier,), MESSAGE, client_proof(salted, MESSAGE)) == verifier
    assert b"v=" + encoded(server_signature(verifier.server_key, MESSAGE)).encode() == SERVER_FINAL


def test_the_messages_of_the_example() -> None:
    first = ClientFirst.parse(CLIENT_FIRST)
    assert first == ClientFirst("n,,", "", f"n=user,r={CLIENT_NONCE}", "user", CLIENT_NONCE)
    server = ServerFirst.parse(SERVER_FIRST, CLIENT_NONCE)
    assert server == ServerFirst(NONCE, SALT, 4096)
    assert str(server).encode() == SERVER_FIRST
    final = ClientFinal.parse(CLIENT_FINAL)
    assert (final.without_proof, final.binding, final.nonce) == (f"c=biws,r={NONCE}", b"n,,", NONCE)


class Users:
    """One user, `user` with the password `pencil`."""

    def verifiers(self, user: str) -> tuple[Verifier, ...]:
        return (Verifier.of("pencil", SALT, 4096),) if user == "user" else ()

    def decoy(self, user: str) -> Verifier:
        return Verifier(4096, user.encode().ljust(16, b"\0"), bytes(32), bytes(32))

    def remembered(self, _user: str, _password: str) -> Verifier | None:
        return None

    def remember(self, _user: str, _verifier: Verifier, _password: str) -> None:
        """Every password is computed."""


def nonce_of(text: str):  # type: ignore[no-untyped-def]
    octets = base64.b64decode(text.encode().ljust(24, b"A"))
    return lambda count: octets[:count]


def converse(user: str, password: str, tamper: tuple[int, bytes, bytes] = (-1, b"", b"")) -> Verdict:
    """A client and a server talk; `tamper` replaces octets in one message. The server's verdict."""
    client = scram_client(user, password, nonce_of("clientnonceclientnonce11"))
    turn, old, new = tamper

    def tampered(message: bytes, number: int) -> bytes:
        return message.replace(old, new, 1) if number == turn else message

    first = client.send(None)
    assert isinstance(first, Exchange)
    server = scram_server(tampered(first.octets, 0), Users(), nonce_of("servernonceservernonce11"))
    try:
        challenge = server.send(None)
        assert isinstance(challenge, Exchange)
        request = client.send(tampered(challenge.octets, 1))
        assert isinstance(request, Compute)
        final = client.send(request.work())
        assert isinstance(final, Exchange)
        server.send(tampered(final.octets, 2))
    except StopIteration as end:
        verdict: Verdict = end.value
    if verdict.identity is not None:
        with pytest.raises(StopIteration):
            client.send(tampered(verdict.additional, 3))
    return verdict


def test_the_right_password_is_accepted_and_the_server_proves_itself() -> None:
    verdict = converse("user", "pencil")
    assert verdict.identity is not None
    assert verdict.identity.name == "user"


@each(("user", "password"), [("user", "Pencil"), ("nobody", "pencil"), ("user,=", "pencil")])
def test_wrong_names_and_passwords_look_alike(user: str, password: str) -> None:
    verdict = converse(user, password)
    assert (verdict.identity, verdict.additional) == (None, b"e=invalid-proof")
    assert "wrong name or password" in verdict.reason
    assert "encil" not in verdict.reason


@each(
    ("tamper", "additional"),
    [
        ((2, b"c=biws", b"c=eSws"), b"e=channel-bindings-dont-match"),
        ((2, b",p=", b",p=AAAA"), b"e=invalid-proof"),
        ((2, b",r=", b",r=x"), b"e=invalid-proof"),
        ((2, b",p=", b",q="), b"e=other-error"),
        ((0, b"n,,", b"p=tls-unique,,"), b"e=other-error"),
        ((0, b"n,,", b"n,a=admin,"), b"e=channel-bindings-dont-match"),
        ((0, b"n=user", b"n=u=ser"), b"e=other-error"),
        ((0, b"n=user", b"m=ext,n=user"), b"e=other-error"),
        ((0, b"n=user", b"n=\xff"), b"e=other-error"),
        ((0, b",r=", b",x="), b"e=other-error"),
    ],
)
def test_a_tampered_exchange_is_refused(tamper: tuple[int, bytes, bytes], additional: bytes) -> None:
    verdict = converse("user", "pencil", tamper)
    assert verdict.identity is None
    assert verdict.additional == additional


@each("message", [b"v=AAAA", b"e=other-error", b"", b"v=\xff", b"x"])
def test_a_client_believes_no_server_that_cannot_prove_itself(message: bytes) -> None:
    client = scram_client("user", "pencil", nonce_of("x"))
    client.send(None)
    own = encoded(nonce_of("x")(18))
    request = client.send(f"r={own}more,s={encoded(SALT)},i=4096".encode())
    assert isinstance(request, Compute)
    client.send(request.work())
    with pytest.raises(ScramError):
        client.send(message)


def sane(octets: bytes) -> ServerFirst:
    """What a client computes with."""
    return ServerFirst.parse(octets, "own")


@each(
    ("parse", "octets"),
    [
        (sane, b"r=other,s=AAAA,i=4096"),
        (sane, b"r=own,s=AAAA,i=4096"),
        (sane, b"r=ownmore,s=AAAA,i=4095"),
        (sane, b"r=ownmore,s=AAAA,i=1000001"),
        (sane, b"r=ownmore,s=AAAA,i=99999999999"),
        (sane, b"r=ownmore,s=A,i=4096"),
        (sane, b"r=ownmore,s=,i=4096"),
        (sane, b"m=x,r=ownmore,s=AAAA,i=4096"),
        (sane, b""),
        (Verifier.parse, "pencil"),
        (Verifier.parse, "SCRAM-SHA-1$4096:AAAA$AAAA:AAAA"),
        (Verifier.parse, "SCRAM-SHA-256$1:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:AAAA"),
        (Verifier.parse, "SCRAM-SHA-256$4096:AAAA$AAAA:AAAA"),
        (Verifier.parse, "SCRAM-SHA-256$4096:!$AAAA:AAAA"),
        *((saslprep, text) for text in ("\u0007", "\u0627\u0031", "", "\u00ad", "a\0b")),
    ],
)
def test_what_is_not_sane_is_refused(parse: Callable[[Any], object], octets: bytes | str) -> None:
    with pytest.raises(ScramError):
        parse(octets)


def test_a_verifier_has_one_text_form() -> None:
    verifier = Verifier.of("pencil", SALT, 4096)
    assert str(verifier) == (
        "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
        ":wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    )
    assert Verifier.parse(str(verifier)) == verifier
    assert accepting((verifier,), "pencil") == verifier
    assert not accepting((verifier,), "pencil ")
    assert not accepting((verifier,), "")


@each(
    ("text", "prepared"),
    [
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
        ("pass🙂word", "pass🙂word"),
    ],
)
def test_the_examples_of_saslprep(text: str, prepared: str) -> None:
    assert saslprep(text) == prepared


def test_a_long_name_costs_what_its_different_characters_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is prepared for everybody who asks, and one character can stand for eighteen."""
    looked_at: list[str] = []

    def prohibited(char: str) -> bool:
        looked_at.append(char)
        return False

    monkeypatch.setattr(scram, "_PROHIBITED", (prohibited,))
    prepared = saslprep("\ufdfa" * 160)
    assert len(prepared) > 2500
    assert sorted(looked_at) == sorted(set(prepared))


@each("text", ["alice", "two words", "a/b:c@d%", "~", " "])
def test_what_is_ascii_stays_as_it_is(text: str) -> None:
    assert saslprep(text) == text == saslprep("\u00ad" + text)  # which is prepared in the long way


@given(st.text(max_size=40))
def test_a_name_stands_escaped_in_a_message(name: str) -> None:
    try:
        prepared = saslprep(name)
        octets = f"n,,n={escaped(prepared)},r=nonce".encode()
    except (ScramError, UnicodeEncodeError):
        return
    assert ClientFirst.parse(octets).user == prepared
