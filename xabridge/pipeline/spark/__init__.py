"""Everything that needs PySpark: the formats `amqp` and `xa`, an epoch for `foreachBatch`, a loop over jobs, and the
checks at the start of a query. The rest of the package works without PySpark."""
