"""What PostgreSQL, MariaDB and MySQL have in common: connections, the transaction of a branch, the resource manager."""
