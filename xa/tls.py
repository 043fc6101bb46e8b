"""TLS: a client's context, and a certificate with its key, from PEM files, without a question at the terminal; and
OpenSSL's reasons in words.

    load_certificate(context, "broker.pem", "broker.key")

OpenSSL asks for the pass phrase of an encrypted key at the terminal, and everything waits meanwhile. No one is there
when a broker starts or a connection is made anew, so such a key is refused.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
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
