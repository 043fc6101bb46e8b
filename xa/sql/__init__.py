"""The SQL ground: what every part that keeps something durable in a database needs to know about databases.

Three parts use it: the transaction manager's log (`tm.log`), the broker's message store (`dtx.store`), and the database
that decides (`rm_db`).

    errors      what an error of a database means, for every database and driver
    sqlite      opening a file of SQLite so that every commit is forced
    postgres    the settings of PostgreSQL under which a commit is durable
    mariadb     the same of MariaDB and MySQL, and what else is different there
    copying     a copy of a file of SQLite while others write to it
    statements  parts of statements that each database writes in its own way

This is the only part of `xa` that may import SQLAlchemy. `import xa` does not load it, and each module is imported by
its own name, because `errors` is also used where SQLAlchemy must not be loaded.
"""
