"""Exactly-once pipelines on Spark Structured Streaming."""
