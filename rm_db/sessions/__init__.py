"""The objects that an application uses inside a branch: SQLAlchemy and psycopg connections on which only the
transaction manager can end the transaction."""
