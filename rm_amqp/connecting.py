"""Connecting: a line to the first broker of a list that can be reached and used."""

from __future__ import annotations

import select
import socket
import time
from typing import TYPE_CHECKING

from rm_amqp.core import established
from rm_amqp.keeper import KEEPER
from rm_amqp.line import SocketLine
from rm_amqp.loss import Cause, ConnectionLost, unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from rm_amqp.core import Core
    from rm_amqp.keeper import Kept
    from rm_amqp.line import Poll
    from rm_amqp.settings import Broker, Settings


def reached(broker: Broker, deadline: float, clock: Callable[[], float]) -> socket.socket:
    """A socket to the first of the host's addresses that answers. (Only the resolver is not bound by the deadline:
    it has time-outs of its own.)"""
    why = "no time was left to try it"
    try:
        addresses = socket.getaddrinfo(broker.host, broker.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise unreachable(broker, f"no such host ({error.strerror})") from None
    for family, kind, protocol, _, address in addresses:
        left_s = deadline - clock()
        if left_s <= 0:
            break
        connected = socket.socket(family, kind, protocol)
        try:
            connected.settimeout(left_s)
            connected.connect(address)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            connected.close()
            timed_out = isinstance(error, TimeoutError)
            why = f"no answer within {left_s:.1f} s" if timed_out else (error.strerror or str(error)).lower()
        except BaseException:
            connected.close()
            raise
        else:
            return connected
    raise unreachable(broker, why)


def connect(
    settings: Settings,
    deadline: float,
    make_core: Callable[[Broker], Core],
    clock: Callable[[], float] = time.monotonic,
    reach: Callable[[Broker, float, Callable[[], float]], socket.socket] = reached,
    make_poll: Callable[[], Poll] = select.poll,
    keep: Callable[[Kept], None] = KEEPER.keep,
) -> SocketLine:
    """A connection that the first broker which can be reached has opened. ConnectionLost says what is wrong with
    each, or why one that was reached can't be used. `reach`, `make_poll` and `keep` are the network: sockets, how
    they are waited for, and who keeps idle lines alive."""
    wrong: list[str] = []
    for broker in settings.brokers:
        until_s = min(deadline, clock() + settings.connect_timeout_s)
        try:
            line = SocketLine(reach(broker, until_s, clock), make_core(broker), make_poll)
            try:
                line.run(established(line.core, until_s))
            except BaseException:
                line.drop()
                raise
        except ConnectionLost as why:
            if why.cause is Cause.UNUSABLE:
                raise
            wrong.append(why.message)
        else:
            keep(line)
            return line
    raise ConnectionLost(Cause.UNREACHABLE, "; ".join(wrong))
