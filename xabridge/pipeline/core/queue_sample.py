"""The bodies of some messages that wait in a source's queues. None of them is taken."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from xa import XaError
from xabridge.pipeline.core.driver.queue_list import QueueList
from xabridge.pipeline.core.errors import PipelineError
from xabridge.pipeline.core.resources import broker, call_resource
from xabridge.pipeline.core.shards import is_pattern
from xabridge.pipeline.core.task.message_decoder import decode_messages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xabridge.pipeline.core.resources import Resources
    from xabridge.pipeline.core.values import Settings, Source


def sampled_bodies(settings: Settings, source: Source, count: int, resources: Resources) -> list[bytes | str]:
    """The bodies of at most `count` messages, shared by the queues. Messages that can't be read, and those without a
    body, are left out. PipelineError: the broker can't be asked."""
    octets: list[bytes] = []
    places = [(name, queue) for name, queues in _queues(settings, source, resources) for queue in queues]
    for number, (name, queue) in enumerate(places):
        resource = resources.get(name, settings.url(name))
        share = -(-(count - len(octets)) // (len(places) - number))
        browse = partial(broker(resource).waiting, queue, resource.rmid, share)
        try:
            octets += call_resource(resource, "browse", browse) if share else []
        except XaError as error:
            raise PipelineError(f"{name}: the queues can't be read: {error}") from error
    chunks = decode_messages(((None, one) for one in octets), count)
    return [body for chunk in chunks for body in chunk.body if body is not None]


def _queues(settings: Settings, source: Source, resources: Resources) -> Iterator[tuple[str, list[str]]]:
    """The queues of each broker. PipelineError: a broker does not tell them."""
    for shard in source.shards:
        patterns = [queue for queue in shard.queues if is_pattern(queue)]
        found = [queue for queue in shard.queues if not is_pattern(queue)]
        if patterns:
            listed = QueueList(resources.get(shard.resource, settings.url(shard.resource)))
            try:
                found += listed.matching(patterns)
            except XaError as error:
                raise PipelineError(f"{shard.resource}: its queues can't be listed: {error}") from error
            finally:
                listed.close()
        yield shard.resource, sorted(set(found))
