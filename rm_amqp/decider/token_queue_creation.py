"""How an instance agrees with all others on one founding of the token queues, over one channel: the ports of
`rm_amqp.decider.election` at a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rm_amqp.connection.endpoint import until
from rm_amqp.decider.channel import LocalWork
from rm_amqp.decider.decision_log import WORN
from rm_amqp.decider.election import PAUSE_S, elect
from rm_amqp.decider.token_queues import TokenBusyError

if TYPE_CHECKING:
    from rm_amqp.decider.channel import LocalChannel
    from rm_amqp.decider.election import Foundings
    from rm_amqp.decider.token_queues import HeldToken
    from rm_amqp.decider.tokens import FoundingMessage, Token


async def agree_on_founding(
    channel: LocalChannel, own: FoundingMessage, until_s: float, deadline: float
) -> FoundingMessage:
    """The founding that counts, for everybody who uses these queues; `own` is founded where there is none.

    RefusedError: the queues can't be used. TokenBusyError: it was not known until `until_s`. WrongTokenError: they
    hold something else. Whatever it raises, tokens may be held: the connection has to go.
    """
    return await elect(_ChannelPorts(channel, until_s, deadline), own)


class _ChannelPorts:
    """Those of one channel. They suspend the election wherever the connection has to wait."""

    def __init__(self, channel: LocalChannel, until_s: float, deadline: float) -> None:
        self._channel = channel
        self._queues = channel.tokens
        self._until_s = until_s
        self._deadline = deadline
        self._held: list[HeldToken] = []

    async def foundings(self) -> Foundings:
        return await self._queues.foundings(self._deadline)

    async def shown(self, slot: int) -> list[Token]:
        return await self._queues.shown(slot, self._deadline)

    async def take(self, slot: int, wait_s: float) -> Token | None:
        taken = await self._queues.take(slot, wait_s, self._deadline)
        while taken is not None and taken.deliveries >= WORN:
            await self._send_anew(taken)
            taken = await self._queues.take(slot, wait_s, self._deadline)
        if taken is None:
            return None
        if self._queues.locks_lapse and any(each.token == taken.token for each in self._held):
            raise TokenBusyError(f"the lock on a token of {self._queues.address(slot)} has run out")
        self._held.append(taken)
        return taken.token

    async def release(self) -> None:
        while self._held:
            await self._queues.release(self._held.pop())

    async def pause(self, why: str) -> None:
        endpoint = self._channel.endpoint
        if endpoint.clock() >= self._until_s:
            raise TokenBusyError(f"it is not known yet which founding of {self._queues.name} counts: {why}")
        await until(endpoint, lambda: False, endpoint.clock() + PAUSE_S)

    async def _send_anew(self, taken: HeldToken) -> None:
        """Sends a token again as it is. An election takes and releases tokens many times, and a broker may count each
        time, and remove a message that has come back too often."""
        channel, work = self._channel, LocalWork()
        await channel.declare(work, self._deadline)
        await self._queues.replace(work, [taken], taken.token, self._deadline)
        await channel.discharge(work, self._deadline, fail=False)

    async def found(self, founding: FoundingMessage) -> None:
        queues, channel, work = self._queues, self._channel, LocalWork()
        for token in founding.first_tokens():  # of another version, whose founding message is lost: refused
            await queues.shown(token.slot, self._deadline)
        bodies = [(queues.name, founding.encode())]
        bodies += [(queues.address(token.slot), token.encode()) for token in founding.first_tokens()]
        await channel.declare(work, self._deadline)
        await queues.send(bodies, work, self._deadline)
        await channel.discharge(work, self._deadline, fail=False)

    async def elect(self, winner: FoundingMessage, foundings: Foundings) -> None:
        queues, channel, work = self._queues, self._channel, LocalWork()
        places = {(founding.founder, founding.lease_slot) for founding in foundings}
        locks = [each for each in self._held if (each.token.founder, each.token.slot) in places]
        self._held[:] = [each for each in self._held if each not in locks]
        lock = next(each.token for each in locks if each.token.founder == winner.founder)
        await channel.declare(work, self._deadline)
        await queues.replace(work, locks, lock.renewed(), self._deadline)
        await channel.discharge(work, self._deadline, fail=False)
