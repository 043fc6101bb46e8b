"""The algorithms of pipelines, as coroutines over ports (`ports`), without I/O.

- `ownership`: which query has a pipeline
- `epoch_plan`: what a micro-batch reads
- `batch_decision`: commit and abort of a micro-batch
- `recovery`: phase two, and the sweep of what was never decided
- `isolation`: the search for messages that make batches fail
- `partition_read`: one attempt at a source partition
"""
