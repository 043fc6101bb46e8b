"""What can be changed from a page: the kinds of changes, and long ones as jobs."""
