"""What a connection is used for: the work of a thread of control, and the commands that complete branches."""
