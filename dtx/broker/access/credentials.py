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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dtx.amqp.sasl.mechanisms import RESERVED
from dtx.amqp.sasl.scram import ITERATIONS, MAX_ITERATIONS, MIN_ITERATIONS, ScramError, Verifier, saslprep
from xa.durable_files import force, force_descriptor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dtx.broker.transactional_resource import Clock

SALT_OCTETS: Final = 16
DECOY_OCTETS: Final = 32
MOST_KEPT_MS: Final = 30 * 24 * 3600 * 1000
"""How long an old password is valid at most."""


class CredentialsError(Exception):
    """The file can't be used. The message says which line, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class OldPassword:
    """The password that a user had before, which is valid until its end. That is a time of the wall clock, because a
    restart has to know it, and at the latest `until_s` of the monotonic clock, because the wall clock may be set back
    meanwhile. `kept_ms` is how long it was to be kept in all."""

    verifier: Verifier
    kept_ms: int
    until_ms: int
    until_s: float
    clock: Clock = field(repr=False)

    @classmethod
    def ending(cls, verifier: Verifier, kept_ms: int, until_ms: int, clock: Clock) -> OldPassword:
        """One that ends at `until_ms`, and in any case when `kept_ms` have passed from now on."""
        left_ms = min(until_ms - clock.wall_ms(), kept_ms)
        return cls(verifier, kept_ms, until_ms, clock.monotonic() + left_ms / 1000, clock)

    @property
    def left_ms(self) -> int:
        """How much longer it is valid; 0: it has ended."""
        by_monotonic = round((self.until_s - self.clock.monotonic()) * 1000)
        return max(0, min(self.until_ms - self.clock.wall_ms(), by_monotonic))


class Credentials:
    """The users of one file, and what management has changed of them; what a SASL server asks."""

    def __init__(self, verifiers: Mapping[str, Verifier], decoy_secret: bytes) -> None:
        self._verifiers = dict(verifiers)
        self._decoy_secret = decoy_secret
        self._key = os.urandom(DECOY_OCTETS)
        self._old: dict[str, OldPassword] = {}
        self._right: dict[str, dict[bytes, bytes]] = {}
        """By user and StoredKey of the verifier: the digest of a password that was found to be right. It is worth
        nothing without the key, which this process has for itself."""
        self._count_iterations()

    def _count_iterations(self) -> None:
        self._iterations = max((known.iterations for known in self._verifiers.values()), default=ITERATIONS)

    def set(self, user: str, verifier: Verifier | None, old: OldPassword | None = None) -> None:
        """From now on this is the user's verifier, and beside it the old one is valid until its end; None: there is no
        such user."""
        self._right.pop(user, None)
        self._old.pop(user, None)
        if verifier is None:
            self._verifiers.pop(user, None)
        else:
            self._verifiers[user] = verifier
        if old is not None:
            self._old[user] = old
        self._count_iterations()

    @property
    def users(self) -> list[str]:
        """Every name."""
        return sorted(self._verifiers)

    def verifier(self, user: str) -> Verifier | None:
        """The verifier of the user's present password; None: there is no such user."""
        return self._verifiers.get(user)

    def old(self, user: str) -> OldPassword | None:
        """The old password that is still valid."""
        found = self._old.get(user)
        return found if found is not None and found.left_ms else None

    @property
    def old_passwords(self) -> dict[str, OldPassword]:
        """By user: the old passwords that were set, also those that have ended by now."""
        return dict(self._old)

    def verifiers(self, user: str) -> tuple[Verifier, ...]:
        present, old = self._verifiers.get(user), self.old(user)
        if present is None:
            return ()
        return (present,) if old is None else (present, old.verifier)

    def decoy(self, user: str) -> Verifier:
        salt, stored, server = (
            hmac.digest(self._decoy_secret, f"{part}:{user}".encode(), "sha256")
            for part in ("salt", "stored", "server")
        )
        return Verifier(self._iterations, salt[:SALT_OCTETS], stored, server)

    def remembered(self, user: str, password: str) -> Verifier | None:
        held = self.verifiers(user) or (self.decoy(user),)
        right, found = self._right.get(user, {}), None
        for verifier in (held[-1], held[0]):  # two, also where there is one: it takes as long
            if hmac.compare_digest(self._digest(verifier, password), right.get(verifier.stored_key, b"")):
                found = verifier
        return found

    def remember(self, user: str, verifier: Verifier, password: str) -> None:
        if verifier in self.verifiers(user):  # or it was changed meanwhile
            self._right.setdefault(user, {})[verifier.stored_key] = self._digest(verifier, password)

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
    """The verifier of a password, with a new salt; CredentialsError for one that can't be used."""
    return verifier_beside(user, password, random(SALT_OCTETS), iterations)


def verifier_beside(user: str, password: str, salt: bytes, iterations: int) -> Verifier:
    """The verifier of a new password with the salt and the iterations of the old one, which stays valid for a time.
    CredentialsError: the password, or what a broker has said of the old one, can't be used."""
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise CredentialsError(f"user {user!r}: the broker names {iterations} iterations, which is out of range")
    try:
        return Verifier.of(password, salt, iterations)
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
