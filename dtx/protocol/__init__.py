"""Commands and replies of distributed transactions over AMQP 1.0, shared by client and broker."""
