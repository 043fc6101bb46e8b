"""MariaDB and MySQL: connections, the XA transaction of a branch, and the resource manager that prepares it."""

from importlib.util import find_spec

if find_spec("pymysql") is None:
    raise ModuleNotFoundError("MariaDB and MySQL need PyMySQL: install xabridge[mariadb]", name="pymysql")
