"""The bodies of some messages that wait in a source's queues. None of them is taken."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from xa import XaError
from xabridge.pipeline.core.errors import PipelineError
from xabridge.pipeline.core.resources import broker, call_resource
from xabridge.pipeline.core.task.message_decoder import decode_messages

if TYPE_CHECKING:
    from xabridge.pipeline.core.resources import Resources
    from xabridge.pipeline.core.values import Settings, Source


def sampled_bodies(settings: Settings, source: Source, count: int, resources: Resources) -> list[bytes | str]:
    """The bodies of at most `count` messages, shared by the queues. Messages that can't be read, and those without a
    body, are left out. PipelineError: the broker can't be asked."""
    resource = resources.get(source.resource, settings.url(source.resource))
    rm = broker(resource)
    octets: list[bytes] = []
    try:
        for number, queue in enumerate(source.queues):
            share = -(-(count - len(octets)) // (len(source.queues) - number))
            octets += (
                call_resource(resource, "browse", partial(rm.waiting, queue, resource.rmid, share)) if share else []
            )
    except XaError as error:
        raise PipelineError(f"{source.resource}: the queues can't be read: {error}") from error
    chunks = decode_messages(((None, one) for one in octets), count)
    return [body for chunk in chunks for body in chunk.body if body is not None]
