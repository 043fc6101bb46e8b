"""MariaDB and MySQL: connections, the XA transaction of a branch, and the resource manager that prepares it."""
