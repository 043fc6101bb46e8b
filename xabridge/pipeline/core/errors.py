"""The exceptions of a pipeline: one class for each decision that the caller takes. Messages say what to do."""

from __future__ import annotations

from xa.secrets import masked


class PipelineError(Exception):
    """An error of a pipeline; the message names what to correct, and holds no password."""

    def __init__(self, message: str) -> None:
        super().__init__(masked(message))


class PipelineTaken(PipelineError):
    """Another driver, or another query of this driver, has the pipeline: stop one of the two."""


class BatchRefused(PipelineError):
    """The micro-batch can't be decided and was not: nothing of it happened, and it has to be run again. `of_rows`: one
    of its rows can't be written, and never will be. `outage`: something could not be reached; it may be there soon."""

    def __init__(self, message: str, *, of_rows: bool = False, outage: bool = False) -> None:
        super().__init__(message)
        self.of_rows = of_rows
        self.outage = outage


class EpochGone(PipelineError):
    """The checkpoint asks for an epoch that was decided and finished long ago: it is older than the decision log (a
    backup, say). Nothing was read."""
