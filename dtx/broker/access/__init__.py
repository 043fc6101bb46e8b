"""Access to the broker: users, permissions, limits on connections."""
