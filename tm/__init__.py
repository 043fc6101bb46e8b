"""The transaction manager."""
