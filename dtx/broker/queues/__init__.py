"""Queues, their messages and what becomes of them."""
