"""one_pass(): one delivery to a consumer's handler, for tests of applications: the receive loop of a worker, which ends
when one message, or one batch, was handled, refused or could not be received. No wait takes any time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tm.consumer.receive_loop import receive_loop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tm.consumer.history import History
    from tm.consumer.receive_loop import DeliveredMessage, WorkerPorts
    from tm.consumer.settings import ConsumerSettings


class SinglePassPorts:
    """The ports of one worker, until something has come to an end. `error` is what kept it from a good one."""

    def __init__(self, worker: WorkerPorts) -> None:
        self._worker = worker
        self._over = False
        self.error: Exception | None = None
        self.has_received = False

    def is_over(self) -> bool:
        """Whether the loop has to end."""
        return self._over

    async def receive(self, count: int, *, check: bool) -> Sequence[DeliveredMessage] | Exception:
        received = await self._worker.receive(count, check=check)
        if isinstance(received, Exception):
            self._ended(received)
        elif not received:
            self._ended(None)
        else:
            self.has_received = True
        return received

    def history(self, message: Any) -> History:
        return self._worker.history(message)

    async def put_off(self, messages: Sequence[DeliveredMessage], wait_s: float) -> Exception | None:
        return self._ended(await self._worker.put_off(messages, wait_s))

    async def handle(self, messages: Sequence[DeliveredMessage]) -> Exception | None:
        return self._ended(await self._worker.handle(messages))

    async def refuse(self, messages: Sequence[DeliveredMessage]) -> Exception | None:
        return self._ended(await self._worker.refuse(messages))

    async def give_back(self, messages: Sequence[DeliveredMessage]) -> Exception | None:
        return await self._worker.give_back(messages)

    async def pause(self, seconds: float) -> None:
        """The time has passed."""

    def _ended(self, error: Exception | None) -> Exception | None:
        self._over, self.error = True, error
        return error


async def one_pass(worker: WorkerPorts, settings: ConsumerSettings, timeout_s: float) -> SinglePassPorts:
    """One delivery; `error` is the exception that it failed with."""
    ports = SinglePassPorts(worker)
    await receive_loop(ports, settings, timeout_s, ports.is_over)
    return ports
