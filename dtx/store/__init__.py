"""MessageStore: where the broker keeps messages and prepared branches."""
