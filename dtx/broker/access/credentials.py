"""The broker's file of users: one SCRAM-SHA-256 verifier per user, no passwords.

Lines are `<verifier> <name>`, with the verifier as in `dtx.amqp.sasl.scram` and the name up to the end of the
line; `decoy <base64>` is the secret from which the verifiers of names that are not there are made, so that
no one can find out which names are. Empty lines and those that begin with # say nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dtx.amqp.sasl.mechanisms import RESERVED
from dtx.amqp.sasl.scram import ITERATIONS, ScramError, Verifier, saslprep
from xa.durable_files import force, force_descriptor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SALT_OCTETS: Final = 16
DECOY_OCTETS: Final = 32


class CredentialsError(Exception):
    """The file can't be used. The message says which line, and what is wrong with it."""


class Credentials:
    """The users of one file; what a SASL server asks."""

    def __init__(self, verifiers: Mapping[str, Verifier], decoy_secret: bytes) -> None:
        self._verifiers = dict(verifiers)
        self._decoy_secret = decoy_secret
        self._key = os.urandom(DECOY_OCTETS)
        self._right: dict[str, bytes] = {}
        """By user: the digest of a password that was found to be right. It is worth nothing without the key, which this
        process has for itself, and holds for the verifier that it was found with."""
        self._count_iterations()

    def _count_iterations(self) -> None:
        self._iterations = max((known.iterations for known in self._verifiers.values()), default=ITERATIONS)

    def set(self, user: str, verifier: Verifier | None) -> None:
        """From now on this is the user's verifier; None: there is no such user."""
        self._right.pop(user, None)
        if verifier is None:
            self._verifiers.pop(user, None)
        else:
            self._verifiers[user] = verifier
        self._count_iterations()

    @property
    def users(self) -> list[str]:
        """Every name."""
        return sorted(self._verifiers)

    def verifier(self, user: str) -> Verifier | None:
        return self._verifiers.get(user)

    def decoy(self, user: str) -> Verifier:
        salt, stored, server = (
            hmac.digest(self._decoy_secret, f"{part}:{user}".encode(), "sha256")
            for part in ("salt", "stored", "server")
        )
        return Verifier(self._iterations, salt[:SALT_OCTETS], stored, server)

    def remembers(self, user: str, password: str) -> bool:
        digest = self._digest(self._verifiers.get(user) or self.decoy(user), password)
        return hmac.compare_digest(digest, self._right.get(user, b""))

    def remember(self, user: str, verifier: Verifier, password: str) -> None:
        if self._verifiers.get(user) is verifier:  # or it was changed meanwhile
            self._right[user] = self._digest(verifier, password)

    def _digest(self, verifier: Verifier, password: str) -> bytes:
        return hmac.digest(self._key, verifier.salt + verifier.stored_key + password.encode(), "sha256")

    @classmethod
    def load(cls, path: Path) -> Credentials:
        """Reads a file; CredentialsError when there is none or it is not one."""
        verifiers, secret = _read(path)
        if secret is None:  # written by hand: as good a secret as the keys that stand in it
            keys = b"".join(verifiers[user].server_key for user in sorted(verifiers))
            secret = hashlib.sha256(b"decoy" + keys).digest()
        return cls(verifiers, secret)


def set_password(
    path: Path,
    user: str,
    password: str,
    *,
    random: Callable[[int], bytes] = os.urandom,
    iterations: int = ITERATIONS,
) -> None:
    """Adds a user to the file, or changes a password; makes the file where there is none. A running broker
    goes on with what it read at its start."""
    name = user_name(user)
    verifier = verifier_of(user, password, random=random, iterations=iterations)
    verifiers, secret = _read(path) if path.exists() else ({}, None)
    verifiers[name] = verifier
    _write(path, verifiers, secret or random(DECOY_OCTETS))


def user_name(user: str) -> str:
    """The name of a user as it is compared; CredentialsError for what can't be one."""
    try:
        name = saslprep(user)
    except ScramError as error:
        raise CredentialsError(f"user {user!r}: {error}") from error
    if not name or name in RESERVED or "\n" in name or name != name.strip():
        raise CredentialsError(f"{name!r} can't be the name of a user")
    return name


def verifier_of(
    user: str, password: str, *, random: Callable[[int], bytes] = os.urandom, iterations: int = ITERATIONS
) -> Verifier:
    """The verifier of a password; CredentialsError for one that can't be used."""
    try:
        return Verifier.of(password, random(SALT_OCTETS), iterations)
    except ScramError as error:
        raise CredentialsError(f"user {user!r}: {error}") from error


def _read(path: Path) -> tuple[dict[str, Verifier], bytes | None]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CredentialsError(f"{path}: {error}") from error
    verifiers: dict[str, Verifier] = {}
    secret = None
    for number, line in enumerate(lines, 1):
        kind, _, rest = line.partition(" ")
        if not line.strip() or line.startswith("#"):
            continue

        try:
            if kind == "decoy":
                secret = binascii.a2b_base64(rest.encode(), strict_mode=True)
                continue
            name, verifier = saslprep(rest), Verifier.parse(kind)
        except (ScramError, binascii.Error) as error:
            raise CredentialsError(f"{path}, line {number}: {error}") from error
        if name in verifiers or name in RESERVED:
            raise CredentialsError(f"{path}, line {number}: the name {name!r} is reserved, or there already")
        verifiers[name] = verifier
    return verifiers, secret


def _write(path: Path, verifiers: Mapping[str, Verifier], secret: bytes) -> None:
    """Replaces the file in one step, readable by its owner only."""
    lines = [f"decoy {base64.b64encode(secret).decode()}"]
    lines += [f"{verifiers[name]} {name}" for name in sorted(verifiers)]
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=path.name, delete=False) as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        force_descriptor(file.fileno())
    Path(file.name).replace(path)
    force(path.parent)
