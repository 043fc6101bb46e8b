"""The executors' side of a pipeline: tasks that read messages, and tasks that write rows and messages."""
