"""QueryOptions: the options of the sources and the sink of one query, and the check that they belong together.

All of them share one decision for each micro-batch. So they have to name one pipeline and one log, and each has to know
every resource that is read from, because before the decision it is asked which messages were taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xabridge.pipeline.core import PipelineError, Settings
from xabridge.pipeline.core.shards import overlap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xabridge.pipeline.options import SinkOptions, SourceOptions


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """The options of a query's sources of the format `amqp`, in their order, and of its sink of the format `xa`, if it
    has one. `foreign` are the names that Spark gives to the other streams that it reads."""

    sources: tuple[SourceOptions, ...]
    sink: SinkOptions | None
    foreign: tuple[str, ...] = ()

    def settings(self) -> Settings:
        """The settings that all of them share, with every resource that one of them knows. PipelineError: they do not
        belong together, or there are none."""
        named = list(self._named())
        if not named:
            raise PipelineError("the query has no source of the format amqp and no sink of the format xa")
        (first_name, first), *others = named
        for name, settings in others:
            _check_same_pipeline(first_name, first, name, settings)
        self._check_queues()
        resources = _resources(named)
        deciders = {name: url for _, settings in named for name, url in settings.deciders}
        for name in deciders.keys() & resources.keys():
            raise PipelineError(
                f"resource {name} decides for one part of the query, and another part would prepare transactions "
                f'there. Give the sources and the sink the same option decider, or set mode = "decider" in the '
                "configuration"
            )

        for name, settings in named:
            known = dict(settings.resources)
            for resource in (resource for source in self.sources for resource in source.source.resources):
                if resource not in known:
                    raise PipelineError(
                        f"the query reads from {resource}, and {name} does not know that resource. "
                        f"Every part needs it, because before the decision it is asked which messages were taken. "
                        f"Configure it for all parts of the query, under the same name"
                    )

        adopted = {settings.adopt for _, settings in named if settings.adopt}
        if len(adopted) > 1:
            raise PipelineError(
                f"option adopt: a query can adopt the pipeline of one query, not of {' and '.join(sorted(adopted))}"
            )
        return Settings(first.pipeline, first.log, tuple(resources.items()), tuple(deciders.items()), "".join(adopted))

    def _named(self) -> Iterator[tuple[str, Settings]]:
        for source in self.sources:
            yield f"the source of {source.source}", source.settings
        if self.sink is not None:
            yield "the sink", self.sink.settings

    def _check_queues(self) -> None:
        read: list[tuple[str, str]] = []
        for source in self.sources:
            mine = [(shard.resource, queue) for shard in source.source.shards for queue in shard.queues]
            for resource, queue in mine:
                for name, other in read:
                    if name == resource and overlap(queue, other):
                        which = (
                            f"queue {queue!r}" if queue == other else f"a queue that matches {queue!r} and {other!r}"
                        )
                        raise PipelineError(
                            f"two sources of the query read {which} of {resource}, so each message would come to only "
                            "one of them. Read it by one source; a DataFrame that is joined with itself makes two"
                        )
            read += mine


def _check_same_pipeline(first_name: str, first: Settings, name: str, settings: Settings) -> None:
    if settings.pipeline != first.pipeline:
        raise PipelineError(
            f"{first_name} belongs to pipeline {first.pipeline!r}, and {name} to pipeline {settings.pipeline!r}, but "
            "the sources and the sink of one query share one decision. Give them the same option pipeline"
        )
    if settings.log != first.log:
        raise PipelineError(
            f"pipeline {first.pipeline!r}: {first_name} and {name} have different decision logs, but the sources and "
            "the sink of one query share one decision. Give them the same option log"
        )


def _resources(named: list[tuple[str, Settings]]) -> dict[str, str]:
    resources: dict[str, str] = {}
    for name, settings in named:
        for resource, url in settings.resources:
            if resources.setdefault(resource, url) != url:
                raise PipelineError(
                    f"resource {resource}: {name} has another open string for it than another part of the query. Give "
                    "it the same open string everywhere, because one name means one resource"
                )
    return resources
