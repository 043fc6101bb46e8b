"""TLS: a client's context, a server's one that follows its files, and a certificate with its key, from PEM files,
without a question at the terminal; and OpenSSL's reasons in words.

    load_certificate(context, "broker.pem", "broker.key")

OpenSSL asks for the pass phrase of an encrypted key at the terminal, and everything waits meanwhile. No one is there
when a broker starts or a connection is made anew, so such a key is refused.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from os import PathLike

_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})
"""OpenSSL's reasons where what a peer says first is none of TLS."""
ENCRYPTED: Final = (
    "the key is encrypted with a pass phrase; write it without one (openssl pkey -in FILE -out OTHER) into a file that "
    "only this process's user can read"
)


def load_certificate(
    context: ssl.SSLContext, certificate: str | PathLike[str], key: str | PathLike[str] | None = None
) -> None:
    """`key` is None where it stands in the same file. OSError: a file can't be used, for instance because the key is
    encrypted."""
    context.load_cert_chain(certificate, key, refuse_to_ask)


def client_context(ca: str | None, certificate: str | None, key: str | None) -> ssl.SSLContext:
    """How a client encrypts: it trusts `ca`, or else what the system trusts, and shows `certificate`, if there is one.
    OSError: a file can't be used."""
    context = ssl.create_default_context(cafile=ca)
    if certificate is not None:
        load_certificate(context, certificate, key)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class FollowedContext:
    """A server's context that is made anew when one of its files has changed, so that a certificate is replaced while
    the server runs: what connects from then on sees the new one. If the files don't make a context, because only one
    of the pair has been replaced so far, the former one goes on, and `failed` is called once for each such state."""

    def __init__(
        self,
        make: Callable[[], ssl.SSLContext],
        files: Iterable[str | PathLike[str]],
        failed: Callable[[OSError], None],
    ) -> None:
        """OSError: the files can't be used now."""
        self._make = make
        self._files = tuple(files)
        self._failed = failed
        self._state = self._look()  # before they are read
        self._context = make()

    def _look(self) -> tuple[tuple[int, ...], ...]:
        return tuple(map(_state_of, self._files))

    @property
    def current(self) -> ssl.SSLContext:
        """The context of the files as they are now."""
        self.make_current()
        return self._context

    def make_current(self) -> None:
        """Makes the context anew if a file has changed."""
        state = self._look()
        if state != self._state:
            self._state = state
            try:
                self._context = self._make()
            except OSError as error:
                self._failed(error)


def _state_of(file: str | PathLike[str]) -> tuple[int, ...]:
    """What changes with a file: also if another one takes its place, or its mode changes."""
    try:
        found = Path(file).stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def end_of_certificate(file: str | PathLike[str]) -> float:
    """Until when the first certificate of a PEM file is valid, in seconds since 1970. OSError, ValueError: the file
    can't be used.

    A certificate begins, in DER: SEQUENCE { SEQUENCE { [0] version, serial, algorithm, issuer, SEQUENCE { from, until
    (RFC 5280, 4.1); the version may be missing. Python tells this only of the certificates of peers."""
    pem = Path(file).read_text(encoding="ascii", errors="replace")
    head, foot = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    _, found, rest = pem.partition(head)
    if not found:
        raise ValueError("the file has no certificate")
    der = ssl.PEM_cert_to_DER_cert(head + rest.partition(foot)[0] + foot)

    try:
        certificate, _ = _der_value(der, 0)
        body, _ = _der_value(certificate, 0)
        at = _der_value(body, 0)[1] if body[0] == _VERSION else 0
        for _ in ("serial", "algorithm", "issuer"):
            at = _der_value(body, at)[1]
        validity, _ = _der_value(body, at)
        until, _ = _der_value(validity, _der_value(validity, 0)[1])
        text = until.decode("ascii")
        if len(text) == _SHORT_YEAR:  # of 1950 to 2049
            text = f"{'19' if text >= '50' else '20'}{text}"
        return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except (IndexError, UnicodeDecodeError) as error:
        raise ValueError("the certificate is damaged") from error


_VERSION: Final = 0xA0
_SHORT_YEAR: Final = len("YYMMDDHHMMSSZ")


def _der_value(octets: bytes, at: int) -> tuple[bytes, int]:
    """What the value at `at` has in it, and where the next one begins."""
    length, at = octets[at + 1], at + 2
    if length & 0x80:
        count = length & 0x7F
        length, at = int.from_bytes(octets[at : at + count], "big"), at + count
    return octets[at : at + length], at + length


def reason_of(error: ssl.SSLError) -> str:
    """Why there is no TLS, or the peer can't be trusted."""
    reason = error.reason or str(error)
    if error.reason in _NO_TLS:
        return f"no TLS is spoken at this port: name the port for TLS, or a scheme without it ({reason})"
    why = getattr(error, "verify_message", "")
    return f"{reason}: {why}" if why else reason


def refuse_to_ask() -> NoReturn:
    """Refuses, in place of the question for a pass phrase."""
    raise OSError(ENCRYPTED)
