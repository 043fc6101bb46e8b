"""The AMQP resource manager client."""
