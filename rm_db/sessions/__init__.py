"""What an application works with inside a branch: SQLAlchemy and psycopg connections on which only the transaction
manager can end the transaction."""
