"""The pipeline on Spark, measured: `python -m bench pipeline`."""
