"""The resource manager of an AMQP 1.0 broker with local transactions, as the one that decides.

Its work and the decision are committed together, by the discharge of one local transaction, so that it needs no
distributed transactions. The XA verbs are those of `xa.switch`, over a `DecidingBrokerDriver`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rm_amqp.connections import ConnectedSwitch, Environment
from rm_amqp.decider.channel import LocalBranchWork
from rm_amqp.decider.driver import DecidingBrokerDriver
from rm_amqp.diagnosis import diagnose_decider, token_summary
from rm_amqp.settings import parse
from xa.switch import DecidingSwitch

if TYPE_CHECKING:
    from collections.abc import Callable

    from rm_amqp.decider.channel import LocalChannel
    from rm_amqp.decider.tokens import Token
    from rm_amqp.diagnosis import TokenSummary
    from xa import Registrar
    from xa.diagnosis import Diagnosis


class DecidingBroker(ConnectedSwitch[LocalBranchWork], DecidingSwitch[LocalBranchWork]):
    """One instance. Open string: as `rm_amqp.settings` says, with or without `decider+` before it. `wall` is the clock
    that leases go by."""

    driver: DecidingBrokerDriver

    def __init__(
        self,
        registrar: Registrar | None = None,
        wall: Callable[[], float] = time.time,
        environment: Environment | None = None,
    ) -> None:
        super().__init__(DecidingBrokerDriver(environment or Environment(), wall), registrar)

    def diagnose(self, open_string: str) -> Diagnosis:
        """Only browses the queues, over a connection of its own; a broker that makes queues on demand may make them,
        empty."""
        return diagnose_decider(lambda: parse(open_string), lambda: _tokens_at(open_string))


def _tokens_at(open_string: str) -> TokenSummary:
    """The contents of the token queues: the founding, and the slots whose tokens can't be seen now."""
    driver = DecidingBrokerDriver(Environment())
    driver.connect(parse(open_string))

    async def look(channel: LocalChannel, deadline: float) -> TokenSummary:
        foundings = await channel.tokens.foundings(deadline)
        tokens: list[Token] = []
        for slot in range(max((founding.slots for founding in foundings), default=-1) + 1):
            tokens += await channel.tokens.shown(slot, deadline)
        return token_summary(foundings, tokens)

    def looked() -> TokenSummary:
        deadline = driver.connections.deadline()
        pooled = driver.connections.pool.acquire(work=True, deadline=deadline)
        return pooled.connection.run(look(pooled.channel, deadline))

    try:
        return driver.guarded("open", None, looked)
    finally:
        driver.drop()


def deciding(registrar: Registrar) -> DecidingBroker:
    """For `decider+amqp://` and `decider+amqps://`."""
    return DecidingBroker(registrar)
