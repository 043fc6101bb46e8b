"""Threads, tasks and signals: who may be inside a transaction, and what no signal handler may interrupt."""
