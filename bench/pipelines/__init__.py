"""Measures the pipeline on Spark: `python -m bench pipeline`."""
