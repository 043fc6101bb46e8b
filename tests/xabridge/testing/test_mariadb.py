"""The MariaDB of the tests: servers that run beside each other leave each other's files alone."""

import pytest

mariadb = pytest.importorskip("xabridge.testing.mariadb")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not mariadb.installed(), reason="MariaDB isn't installed"),
]


def test_temporary_tables_outlast_the_start_of_another_server() -> None:
    """A server that starts removes the temporary tables that it finds in its folder for them. With one folder for all,
    another server's installation, which works with such tables, ended with "Unknown table"."""
    server, other = mariadb.MariaDB(), mariadb.MariaDB()
    try:
        server.start()
        server.admin("CREATE DATABASE shop")
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TEMPORARY TABLE shop.kept (id INT) ENGINE = Aria")
            other.start()
            cursor.execute("DROP TEMPORARY TABLE shop.kept")
            cursor.execute("SHOW WARNINGS")
            assert not cursor.fetchall()
    finally:
        server.remove()
        other.remove()
