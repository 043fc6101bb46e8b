"""Databases as the one that decides: the table of decisions, and the resource manager
that commits its work and the decision in one local transaction."""
