"""The benchmarks and demonstrations: each is one command, and prints its figures as JSON."""
