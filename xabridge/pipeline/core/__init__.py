"""The Spark-free core of pipelines: what drivers, sinks and executors exchange, and what they raise.

The driver's side is in `xabridge.pipeline.core.driver`, which loads SQLAlchemy; the executors' in
`xabridge.pipeline.core.task`; the algorithms, without I/O, in `xabridge.pipeline.core.protocol`; what a pipeline
remembers in `xabridge.pipeline.core.ledger`.
"""

from xabridge.pipeline.core.errors import BatchRefused, EpochGone, PipelineError, PipelineTaken
from xabridge.pipeline.core.messages import Messages
from xabridge.pipeline.core.shards import Shard
from xabridge.pipeline.core.values import (
    AddressTarget,
    Attempt,
    Batch,
    LakeTarget,
    Offset,
    OnceSettings,
    Query,
    Settings,
    SinkPlan,
    SinkReport,
    Source,
    SourcePartition,
    TableTarget,
)

__all__ = [
    "AddressTarget",
    "Attempt",
    "Batch",
    "BatchRefused",
    "EpochGone",
    "LakeTarget",
    "Messages",
    "Offset",
    "OnceSettings",
    "PipelineError",
    "PipelineTaken",
    "Query",
    "Settings",
    "Shard",
    "SinkPlan",
    "SinkReport",
    "Source",
    "SourcePartition",
    "TableTarget",
]
