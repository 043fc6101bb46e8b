"""The broker's side of distributed transactions."""
