"""TLS between the octets of the network and those of AMQP, without I/O."""

from __future__ import annotations

import ssl


class TlsLayer:
    """One connection's TLS, the client's side. It does the handshake by itself as octets come and go."""

    def __init__(self, context: ssl.SSLContext, hostname: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=hostname)
        self._established = False
        self._waiting = b""
        self.received(b"")

    def received(self, octets: bytes) -> bytes:
        """Takes what came from the network, and returns what the peer said; ssl.SSLError when it is no TLS, or the peer
        is not who it should be."""
        self._incoming.write(octets)
        if not self._established:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                return b""
            self._established = True
            self.send(b"")

        said = []
        while True:
            try:
                said.append(self._object.read(65_536))
            except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                break
            if not said[-1]:
                break
        return b"".join(said)

    def send(self, octets: bytes) -> None:
        """Says this to the peer, once the handshake is done."""
        self._waiting += octets
        if self._established and self._waiting:
            waiting, self._waiting = self._waiting, b""
            self._object.write(waiting)

    def output(self) -> bytes:
        """The octets to be written to the network."""
        return self._outgoing.read()
