"""Transactions: branches, what they hold, and what decides them."""
