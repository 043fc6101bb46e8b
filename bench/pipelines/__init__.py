"""The pipeline on Spark, shown and measured: `xabridge pipeline`, `xabridge bench pipeline`."""
