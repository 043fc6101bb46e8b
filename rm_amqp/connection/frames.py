"""The fields that proton can't write: properties in the flows of a link, and the default outcome in the source of a
receiver.

`OutgoingFrames` takes what our own proton sends, and gives what is to be sent. It reads the frames that make and end
links, and flows while a link has properties; all others pass as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dtx.amqp.decoding import MAX_DEPTH
from dtx.amqp.encoding import encode
from dtx.amqp.frames import AMQP_HEADER, performative_frame
from dtx.amqp.performatives import (
    ATTACH,
    DETACH,
    END,
    FLOW,
    PERFORMATIVES,
    Attach,
    Detach,
    End,
    Flow,
    Source,
)
from dtx.amqp.values import Symbol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dtx.amqp.performatives import Performative
    from dtx.amqp.values import Map

MAX_PROPERTIES: Final = 256
_LINKS: Final = frozenset({ATTACH, DETACH, END})


class OutgoingFrames:
    """The frames that our own proton sends on one connection. Link names are unique per direction within a connection,
    as AMQP demands."""

    def __init__(self) -> None:
        self._kept = b""
        self._started = False
        self._links: dict[tuple[int, int], tuple[str, bool]] = {}
        self._properties: dict[tuple[str, bool], Map] = {}
        self._default_outcomes: dict[str, bytes] = {}

    def handles(self) -> dict[str, int]:
        """The handles with which our ends of links go, by the links' names."""
        return {name: handle for (_, handle), (name, _) in self._links.items()}

    def set_properties(self, name: str, properties: Mapping[str, bytes], *, receiver: bool) -> None:
        """From now on, every flow of our end `name` (a receiver or a sender) has these properties, such as txn-id; with
        an empty mapping none. A flow that proton has not written yet counts as later."""
        if not properties:
            self._properties.pop((name, receiver), None)
            return
        symbols: Map = {Symbol(key): value for key, value in properties.items()}
        size = len(encode(symbols))
        if size > MAX_PROPERTIES:
            raise ValueError(f"properties of {size} octets; a flow takes at most {MAX_PROPERTIES}")
        self._properties[name, receiver] = symbols

    def set_default_outcome(self, name: str, outcome: bytes) -> None:
        """The attach of our receiver `name`, which is not written yet, gives its source this default outcome, which is
        encoded."""
        self._default_outcomes[name] = outcome

    def feed(self, data: bytes) -> bytes:
        """The octets that are to be sent for `data`. An unfinished frame is kept back."""
        if self._kept:
            data, self._kept = self._kept + data, b""
        run, at, end = 0, 0, len(data)
        if not self._started:
            if end < len(AMQP_HEADER):
                self._kept = data
                return b""
            self._started = True
            at = len(AMQP_HEADER)

        pieces: list[bytes] = []
        while end - at >= 8:
            stop = at + int.from_bytes(data[at : at + 4], "big")
            if stop > end:
                break
            start = at + 4 * data[at + 4]
            code = data[start + 2] if stop - start > 3 else 0
            if code in _LINKS or (code == FLOW and self._properties):
                channel = data[at + 6] << 8 | data[at + 7]
                frame = self._rewritten(channel, PERFORMATIVES.read(data, start + 1, stop, MAX_DEPTH)[0])
                if frame is not None:
                    pieces += (data[run:at], frame)
                    run = stop
            at = stop

        self._kept = data[at:]
        if not pieces:
            return data[:at]
        pieces.append(data[run:at])
        return b"".join(pieces)

    def _rewritten(self, channel: int, performative: Performative) -> bytes | None:
        """The frame with what proton can't say; None where it stays as it is."""
        match performative:
            case Attach(handle=handle, name=name, receiver=receiver):
                self._links[channel, handle] = name, receiver
                outcome = self._default_outcomes.pop(name, None) if receiver else None
                if outcome is not None:
                    performative.source = performative.source or Source()
                    performative.source.default_outcome = outcome
                    return performative_frame(channel, performative)
            case Detach(handle=handle):
                self._gone(channel, handle)
            case End():
                for key in [key for key in self._links if key[0] == channel]:
                    self._gone(*key)
            case Flow(handle=int(handle)):
                link = self._links.get((channel, handle))
                properties = self._properties.get(link) if link is not None else None
                if properties is not None:
                    performative.properties = dict(properties)
                    return performative_frame(channel, performative)

        return None

    def _gone(self, channel: int, handle: int) -> None:
        link = self._links.pop((channel, handle), None)
        if link is not None:
            self._properties.pop(link, None)
