"""Connections to a database's server: steps, replies that come later, and a bounded pool."""
