"""The demo's pipeline on Spark: `xabridge pipeline demo`."""
