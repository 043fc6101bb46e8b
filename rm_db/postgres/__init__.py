"""PostgreSQL: connections, the local transaction of a branch, and the resource manager that prepares it."""
