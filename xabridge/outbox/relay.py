"""Relay: sends what is in an outbox.

    with Relay("postgresql://db/shop", "amqp091://guest:guest@rabbit/"):       # in a thread of its own
        ...
    Relay("postgresql://db/shop", "amqp091://guest:guest@rabbit/").run()       # in this one, until `stop`

Any number of relays may work on one outbox, in any processes. What is promised:

- A message whose transaction is committed is sent at least once, whatever is killed. It is sent again only if its
  confirmation was lost, or the deletion of its row was, or a message beside it made the broker close the channel; then
  with the same id.
- Messages with the same key arrive in the order in which they were put, where copies are left out. A message is sent
  when the broker has confirmed the one before it.
- Messages without a key have no order among each other.

A message that the broker refuses is tried again, after 1, 2, 4, … seconds, at most `max_attempts` times. Then it is set
aside until an operator has looked at it (`xabridge outbox retry`, or `delete`). The later messages of its key wait
behind it; all others go on.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from sqlalchemy.exc import SQLAlchemyError

from dtx.amqp.decoding import DecodeError
from rm_amqp.message import Message
from xa.configuration import check, seconds, setting, whole
from xa.secrets import masked
from xabridge.outbox.publisher import BrokerAway, OutgoingMessage, PublishResult, Refusal
from xabridge.outbox.store import OutboxStore, RelayTurn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xabridge.outbox.metrics import OutboxMetrics
    from xabridge.outbox.publisher import Publisher
    from xabridge.outbox.store import ClaimedRow


logger = logging.getLogger("xabridge.outbox")

MAX_BATCH: Final = 1000
BACKOFF_FIRST_S: Final = 0.5
BACKOFF_LAST_S: Final = 15.0
LEASE_MARGIN_S: Final = 30.0
STOP_S: Final = 60.0
SECONDS: Final = seconds(below=3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """How a relay works."""

    batch: int = setting(
        100, whole(1, MAX_BATCH), f"how many messages it takes at once, at most {MAX_BATCH:,}; 16 MiB end a batch too"
    )
    poll_s: float = setting(0.2, SECONDS, "seconds that it waits when there was nothing to send")
    timeout_s: float = setting(30.0, SECONDS, "seconds that the broker may take to confirm a batch")
    max_attempts: int = setting(10, whole(1), "how often a message is tried that the broker refuses")

    def __post_init__(self) -> None:
        check(self)


class Relay:
    """Sends what is in the outbox at `outbox` (a database's URL, or a store) to the broker at `broker` (an open string,
    or a publisher)."""

    def __init__(
        self,
        outbox: str | OutboxStore,
        broker: str | Publisher,
        settings: RelaySettings | None = None,
        *,
        metrics: OutboxMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings if settings is not None else RelaySettings()
        self.store = OutboxStore.at(outbox) if isinstance(outbox, str) else outbox
        self._publisher = publisher_for(broker) if isinstance(broker, str) else broker
        self._metrics = metrics
        self._clock = clock
        self._holder = f"{os.getpid()}-{uuid.uuid4()}"[:64]
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._backoff_s = 0.0
        self._trouble = ""
        self._is_open = False

    # --- running --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Sends until `stop` is called. TablesError: there is no outbox, and none can be made; what else goes wrong is
        logged, and tried again."""
        try:
            while not self._stopping.is_set():
                wait_s = self._turn()
                if wait_s:
                    self._stopping.wait(wait_s)
        finally:
            self.close()

    def run_once(self) -> RelayTurn:
        """Sends until nothing is due any more; what was done. BrokerAway, TablesError, SQLAlchemy's errors: something
        is left."""
        sent = refused = set_aside = 0
        lag_s = 0.0
        while True:
            carried = self._carry()
            sent, refused = sent + carried.sent, refused + carried.refused
            set_aside, lag_s = set_aside + carried.set_aside, max(lag_s, carried.lag_s)
            if carried.away is not None:
                raise BrokerAway(carried.away)
            if not carried.sent and not carried.refused:
                return RelayTurn(sent, refused, set_aside, lag_s)

    def close(self) -> None:
        """Closes the connections; the next call makes others."""
        self._publisher.close()
        self.store.close()

    def start(self) -> None:
        """Runs in a thread of its own."""
        if self._thread is not None:
            raise RuntimeError("the relay runs already")
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run_logged, name="xabridge-outbox-relay", daemon=True)
        self._thread.start()

    def _run_logged(self) -> None:
        try:
            self.run()
        except Exception:
            logger.exception("the relay has ended; what is in the outbox waits for another one")

    def stop(self) -> None:
        """Ends after the batch that is on its way; waits for the thread that `start` has made."""
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(STOP_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _turn(self) -> float:
        """One turn; how long to wait before the next one."""
        try:
            carried = self._carry()
        except BrokerAway as error:
            return self._failed(f"the broker is away: {error}")
        except SQLAlchemyError as error:
            return self._failed(f"the database is away: {masked(str(error)).splitlines()[0]}")
        if carried.away is not None:
            return self._failed(f"the broker is away: {carried.away}")
        if self._trouble:
            logger.warning("the relay goes on")
            self._trouble, self._backoff_s = "", 0.0
        return 0.0 if carried.sent or carried.refused else self.settings.poll_s

    def _failed(self, why: str) -> float:
        """The same trouble is logged once."""
        if why != self._trouble:
            logger.warning("%s; nothing is lost: what is in the outbox waits", why)
            self._trouble = why
        self._backoff_s = min(max(2 * self._backoff_s, BACKOFF_FIRST_S), BACKOFF_LAST_S)
        return self._backoff_s

    def _carry(self) -> RelayTurn:
        if not self._is_open:
            self.store.open()
            self._is_open = True

        self._publisher.open()  # before rows are locked
        self._publisher.keep_alive()
        settings = self.settings
        carried = self.store.carry(
            self._send,
            batch=settings.batch,
            max_attempts=settings.max_attempts,
            holder=self._holder,
            lease_s=settings.timeout_s + LEASE_MARGIN_S,
        )
        if self._metrics is not None:
            self._metrics.carried(carried)
        if carried.set_aside:
            logger.error(
                "%d messages were set aside, because the broker refuses them: see `xabridge outbox list --refused`",
                carried.set_aside,
            )
        return carried

    def _send(self, taken: Sequence[ClaimedRow]) -> PublishResult:
        """Sends rows in waves. A wave has what has no key, and the first message of each key whose predecessors are all
        confirmed; so it is known of a message that it arrived before the next one of its key is sent. A message that
        was refused before is sent alone, so that what the broker does because of it happens to no other message."""
        deadline = self._clock() + self.settings.timeout_s
        sent = PublishResult()
        left = list(taken)
        while left and sent.away is None and self._clock() < deadline:
            wave, left = _wave(left)
            self._send_together([row for row in wave if not row.attempts], sent, deadline)
            for row in wave:
                if row.attempts and sent.away is None:
                    self._send_together([row], sent, deadline)
            stuck = {row.order_key for row in wave if row.order_key is not None and row.id not in sent.confirmed}
            left = [row for row in left if row.order_key not in stuck]
        return sent

    def _send_together(self, rows: Sequence[ClaimedRow], sent: PublishResult, deadline: float) -> None:
        outgoing = []
        for row in rows:
            try:
                outgoing.append(OutgoingMessage(row.id, row.destination, Message.from_octets(row.message)))
            except DecodeError as error:
                sent.refused[row.id] = Refusal(f"the row holds no message: {error}", final=True)
        if outgoing:
            came = self._publisher.send(outgoing, deadline)
            sent.confirmed |= came.confirmed
            sent.refused |= came.refused
            sent.away = came.away


def _wave(rows: Sequence[ClaimedRow]) -> tuple[list[ClaimedRow], list[ClaimedRow]]:
    """The rows that can be sent now, and those that have to wait for one of these."""
    wave: list[ClaimedRow] = []
    later: list[ClaimedRow] = []
    keys: set[str] = set()
    for row in rows:
        if row.order_key is None:
            wave.append(row)
        elif row.order_key in keys:
            later.append(row)
        else:
            keys.add(row.order_key)
            wave.append(row)
    return wave, later


def publisher_for(open_string: str) -> Publisher:
    """The publisher for this broker; it is loaded when it is needed. ValueError, XaMisuse: the open string is wrong."""
    scheme = open_string.partition("://")[0]
    if scheme in {"amqp091", "amqp091s"}:
        from xabridge.outbox.rabbitmq import RabbitPublisher  # noqa: PLC0415 — needs the extra `rabbitmq`

        return RabbitPublisher(open_string)
    if scheme in {"amqp", "amqps"}:
        from xabridge.outbox.amqp10 import Amqp10Publisher  # noqa: PLC0415 — loads proton

        return Amqp10Publisher(open_string)
    raise ValueError(
        f"{scheme[:20]!r} is no scheme of a relay's broker: amqp:// and amqps:// are AMQP 1.0, amqp091:// and "
        "amqp091s:// are RabbitMQ over AMQP 0-9-1"
    )
