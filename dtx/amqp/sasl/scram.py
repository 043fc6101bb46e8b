"""SCRAM-SHA-256 (RFC 5802, RFC 7677): what client and server compute, the messages, and what a server stores.

A server keeps no password but a verifier, in the text form that PostgreSQL uses too:
SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>, with base64 for the last three. Channel binding is
not offered. Names and passwords are prepared with SASLprep (RFC 4013); characters newer than its tables may
stand in them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import stringprep
import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

MECHANISM: Final = "SCRAM-SHA-256"
ITERATIONS: Final = 15_000
MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 1_000_000
GS2_HEADER: Final = "n,,"

_VERIFIER: Final = re.compile(r"SCRAM-SHA-256\$([1-9][0-9]{0,6}):([^$:]+)\$([^$:]+):([^$:]+)", re.ASCII)
_CLIENT_FIRST: Final = re.compile(r"([ny],(?:a=([^,]+))?,)(n=([^,]+),r=([\x21-\x2b\x2d-\x7e]+))(?:,.*)?", re.DOTALL)
_SERVER_FIRST: Final = re.compile(r"r=([\x21-\x2b\x2d-\x7e]+),s=([^,]+),i=([1-9][0-9]{0,6})(?:,.*)?", re.DOTALL)
_CLIENT_FINAL: Final = re.compile(r"(c=([^,]+),r=([\x21-\x2b\x2d-\x7e]+)(?:,.*)?),p=([^,]+)", re.DOTALL)
_PROHIBITED: Final = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


class ScramError(ValueError):
    """A message or a text is not what SCRAM prescribes. It holds no secrets."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """A verifier, which can check a password without holding it."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def __str__(self) -> str:
        salt, stored, server = (_base64(part) for part in (self.salt, self.stored_key, self.server_key))
        return f"{MECHANISM}${self.iterations}:{salt}${stored}:{server}"

    @classmethod
    def parse(cls, text: str) -> Verifier:
        """The verifier with this text form."""
        match = _VERIFIER.fullmatch(text)
        if match is None:
            raise ScramError(f"not a verifier of the form {MECHANISM}$<iterations>:<salt>$<StoredKey>:<ServerKey>")
        iterations = int(match[1])
        salt, stored, server = (_from_base64(match[part]) for part in (2, 3, 4))
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise ScramError(f"{iterations} iterations; {MIN_ITERATIONS} to {MAX_ITERATIONS} are allowed")
        if len(stored) != 32 or len(server) != 32:
            raise ScramError("the keys of a verifier have 32 octets each")
        return cls(iterations, salt, stored, server)

    @classmethod
    def of(cls, password: str, salt: bytes, iterations: int = ITERATIONS) -> Verifier:
        """The verifier of `password`; this takes milliseconds."""
        salted = salted_password(password, salt, iterations)
        stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
        return cls(iterations, salt, stored, hmac.digest(salted, b"Server Key", "sha256"))


def accepting(verifiers: Sequence[Verifier], password: str) -> Verifier | Literal[False]:
    """Which of one or two verifiers accepts the password. It takes milliseconds, as long for a wrong password, and no
    longer for two: they have one salt and one number of iterations."""
    first, last = verifiers[0], verifiers[-1]
    try:
        given = Verifier.of(password, first.salt, first.iterations).stored_key
    except ScramError:
        return False
    is_first, is_last = (hmac.compare_digest(given, one.stored_key) for one in (first, last))
    return first if is_first else last if is_last else False


@dataclass(frozen=True, slots=True)
class ClientFirst:
    """The client's first message."""

    header: str
    authzid: str
    bare: str
    user: str
    nonce: str

    @classmethod
    def parse(cls, octets: bytes) -> ClientFirst:
        """Parts of the message; ScramError when it is malformed or asks for channel binding."""
        match = _CLIENT_FIRST.fullmatch(_text(octets))
        if match is None:
            raise ScramError("malformed client-first-message, or channel binding was asked for")
        return cls(
            match[1],
            _unescaped(match[2] or ""),
            _text(octets)[len(match[1]) :],
            _unescaped(match[4]),
            match[5],
        )


@dataclass(frozen=True, slots=True)
class ServerFirst:
    """The server's first message."""

    nonce: str
    salt: bytes
    iterations: int

    def __str__(self) -> str:
        return f"r={self.nonce},s={_base64(self.salt)},i={self.iterations}"

    @classmethod
    def parse(cls, octets: bytes, client_nonce: str) -> ServerFirst:
        """Parts of the message; ScramError when it is malformed, replayed or not to be computed."""
        match = _SERVER_FIRST.fullmatch(_text(octets))
        if match is None:
            raise ScramError("malformed server-first-message")
        first = cls(match[1], _from_base64(match[2]), int(match[3]))
        if not first.nonce.startswith(client_nonce) or first.nonce == client_nonce:
            raise ScramError("the server's nonce does not extend the client's")
        if not MIN_ITERATIONS <= first.iterations <= MAX_ITERATIONS:
            raise ScramError(f"the server asks for {first.iterations} iterations")
        return first


@dataclass(frozen=True, slots=True)
class ClientFinal:
    """The client's final message."""

    without_proof: str
    binding: bytes
    nonce: str
    proof: bytes

    @classmethod
    def parse(cls, octets: bytes) -> ClientFinal:
        """Parts of the message."""
        match = _CLIENT_FINAL.fullmatch(_text(octets))
        if match is None:
            raise ScramError("malformed client-final-message")
        return cls(match[1], _from_base64(match[2]), match[3], _from_base64(match[4]))


def proven(verifiers: Sequence[Verifier], message: str, proof: bytes) -> Verifier | Literal[False]:
    """For which of one or two verifiers `proof` shows knowledge of the password, in the exchange whose AuthMessage is
    `message`."""
    first, last = verifiers[0], verifiers[-1]
    is_first, is_last = (_proves(one, message, proof) for one in (first, last))
    return first if is_first else last if is_last else False


def _proves(verifier: Verifier, message: str, proof: bytes) -> bool:
    if len(proof) != 32:
        return False
    signature = hmac.digest(verifier.stored_key, message.encode(), "sha256")
    client_key = _xor(proof, signature)
    return hmac.compare_digest(hashlib.sha256(client_key).digest(), verifier.stored_key)


def server_signature(server_key: bytes, message: str) -> bytes:
    """With this the server shows that it has the verifier."""
    return hmac.digest(server_key, message.encode(), "sha256")


def client_proof(salted: bytes, message: str) -> bytes:
    """With this the client shows that it has the password."""
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored = hashlib.sha256(client_key).digest()
    return _xor(client_key, hmac.digest(stored, message.encode(), "sha256"))


def salted_password(password: str, salt: bytes, iterations: int) -> bytes:
    """PBKDF2 over the prepared password; this takes milliseconds."""
    return hashlib.pbkdf2_hmac("sha256", saslprep(password).encode(), salt, iterations)


def saslprep(text: str) -> str:
    """`text` prepared for comparison (RFC 4013); ScramError when it can't be. It takes a fraction of a millisecond for
    whatever fits into a SASL frame: a server does it for everybody who asks."""
    if text.isascii() and text.isprintable() and text:
        return text
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char for char in text if not stringprep.in_table_b1(char)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if not prepared:
        raise ScramError("a name or password is empty once it is prepared")
    distinct = set(prepared)
    if any(_is_prohibited(char) for char in distinct):
        raise ScramError("a name or password has a character that is not allowed there")

    if any(stringprep.in_table_d1(char) for char in distinct):
        mixed = any(stringprep.in_table_d2(char) for char in distinct)
        if mixed or not (stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1])):
            raise ScramError("a name or password mixes directions of writing")
    return prepared


def _is_prohibited(char: str) -> bool:
    return any(prohibited(char) for prohibited in _PROHIBITED)


def escaped(name: str) -> str:
    """A name in the form that a message has."""
    return name.replace("=", "=3D").replace(",", "=2C")


def encoded(octets: bytes) -> str:
    """Base64, in the form that a message has."""
    return _base64(octets)


def decoded_signature(octets: bytes) -> bytes:
    """The signature in a server-final-message."""
    text = _text(octets)
    if text.startswith("e="):
        raise ScramError(f"the server refused: {text[2:40]!r}")
    if not text.startswith("v="):
        raise ScramError("malformed server-final-message")
    return _from_base64(text[2:].split(",", 1)[0])


def _unescaped(name: str) -> str:
    if re.search("=(?!2C|3D)", name):
        raise ScramError("a name has an '=' that is not escaped")
    return name.replace("=2C", ",").replace("=3D", "=")


def _text(octets: bytes) -> str:
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ScramError("a message is not UTF-8") from error


def _base64(octets: bytes) -> str:
    return base64.b64encode(octets).decode("ascii")


def _from_base64(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise ScramError("a part of a message is not base64") from error


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
