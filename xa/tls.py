"""TLS: a certificate with its key, from PEM files, without a question at the terminal.

    load_certificate(context, "broker.pem", "broker.key")

OpenSSL asks for the pass phrase of an encrypted key at the terminal, and everything waits meanwhile. No one is there
when a broker starts or a connection is made anew, so such a key is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    import ssl
    from os import PathLike

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


def refuse_to_ask() -> NoReturn:
    """In place of the question for a pass phrase."""
    raise OSError(ENCRYPTED)
