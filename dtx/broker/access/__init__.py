"""Who may come in and what they may do: users, permissions, limits on connections."""
