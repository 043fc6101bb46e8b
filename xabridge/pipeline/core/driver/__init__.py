"""The driver's side of a pipeline: it binds the pipeline to a query, plans what is read, and decides what was written.

A `SourcePlanner` and a `SinkCoordinator` are opened in every process that Spark calls, any number of times: they join
their driver (`xabridge.pipeline.core.ledger.opener`). Resource managers stay open in the process. One object is for one
thread at a time.
"""
