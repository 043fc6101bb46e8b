"""The broker that decides: branches are its local transactions, and decisions are kept in token messages."""
