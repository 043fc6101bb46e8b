"""The AMQP side of the broker: a connection, its links and deliveries."""
