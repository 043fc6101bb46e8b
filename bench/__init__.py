"""Benchmarks and demonstrations: one command each, figures as JSON."""
