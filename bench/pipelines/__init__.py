"""This package measures the pipeline on Spark: `python -m bench pipeline`."""
