"""AMQP distributed transactions: `protocol` (shared by both sides), `resource` (the broker), `store`."""
