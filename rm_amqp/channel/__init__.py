"""The uses of a connection: the work of a thread of control, and the commands that complete branches."""
