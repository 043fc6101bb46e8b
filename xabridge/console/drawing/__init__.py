"""Pictures that are made on the server: lines of the last hour, and a transaction in doubt."""
