"""The MariaDB of the tests: servers that run beside each other leave each other's files alone."""

import pytest

from xabridge.testing.mariadb import MariaDB


@pytest.mark.slow
def test_temporary_tables_outlast_the_start_of_another_server(mariadb: MariaDB) -> None:
    """A server that starts removes the temporary tables that it finds in its folder for them. With one folder for all,
    another server's installation, which works with such tables, ended with "Unknown table"."""
    other = MariaDB()
    mariadb.admin("CREATE OR REPLACE DATABASE kept")
    try:
        with mariadb.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TEMPORARY TABLE kept.kept (id INT) ENGINE = Aria")
            other.start()
            cursor.execute("DROP TEMPORARY TABLE kept.kept")
            cursor.execute("SHOW WARNINGS")
            assert not cursor.fetchall()
    finally:
        other.remove()
