"""SqlLog: the decision log in a database. Importing it loads SQLAlchemy."""

from tm.log.sql.log import SqlLog, read_sql_log

__all__ = ["SqlLog", "read_sql_log"]
