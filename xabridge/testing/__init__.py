"""Equipment for tests: a broker, a PostgreSQL and a MariaDB in processes, the reference resource manager, and the
contract suite.

`xabridge.testing.contract` is run over resource managers; docs/resource-managers.md shows how.
"""
