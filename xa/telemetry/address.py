"""Where something listens, as it stands in a configuration."""

from __future__ import annotations


def host_and_port(text: str) -> tuple[str, int]:
    """The parts of `host:port` or `[v6 address]:port`; a port alone is on this machine only. ValueError: it is none."""
    host, separator, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if separator else "127.0.0.1"
    if not port.isdecimal() or int(port) > 65535 or not host:
        raise ValueError(f"{text!r}: expected host:port")
    return host, int(port)
