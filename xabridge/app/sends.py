"""Sends: what a transaction sends with `await tx.asend(…)`, until it is sent.

A coroutine that nobody awaits does nothing, and Python only warns, at some later time. Without the check here such a
transaction would commit without its message. A task that is not done at the commit would lose it, too.
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from tm import ProtocolMisuse


class Sends:
    """Those of one transaction that are not done."""

    def __init__(self) -> None:
        self._undone: dict[int, Send] = {}

    def add(self, address: str, steps: Coroutine[Any, Any, None]) -> Send:
        """A send to `address` whose work is `steps`."""
        send = Send(self, address, steps)
        self._undone[id(send)] = send
        return send

    def done(self, send: Send) -> None:
        """A send is over, however it went."""
        self._undone.pop(id(send), None)

    def check(self) -> None:
        """For a commit: ProtocolMisuse if a send is not done."""
        undone, self._undone = list(self._undone.values()), {}
        if not undone:
            return
        forgotten = [send for send in undone if not send.has_begun]
        for send in forgotten:
            with suppress(ValueError):  # its task begins at this moment, in another thread
                send.close()  # it has its error here; Python need not warn
                send.is_closed = True
        addresses = ", ".join(sorted({repr(send.address) for send in forgotten or undone}))
        if forgotten:
            raise ProtocolMisuse(f"asend to {addresses} was not awaited: write `await tx.asend(…)`")
        raise ProtocolMisuse(f"asend to {addresses} is not done: await its task before the transaction ends")


class Send(Coroutine[Any, Any, None]):
    """The coroutine of one send, which tells when it is over."""

    def __init__(self, sends: Sends, address: str, steps: Coroutine[Any, Any, None]) -> None:
        self.address = address
        self.has_begun = False
        self.is_closed = False
        """Whether the transaction has ended before it began."""
        self._sends = sends
        self._steps = steps

    def send(self, value: Any) -> Any:
        if self.is_closed:
            raise ProtocolMisuse(f"the transaction ended before the task of asend to {self.address!r} began: await it")
        self.has_begun = True
        try:
            return self._steps.send(value)
        except BaseException:
            self._sends.done(self)
            raise

    def throw(self, *error: Any) -> Any:
        self.has_begun = True
        try:
            return self._steps.throw(*error)
        except BaseException:
            self._sends.done(self)
            raise

    def close(self) -> None:
        self._steps.close()
        self._sends.done(self)

    def __await__(self) -> Any:
        return self

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return self.send(None)
