"""AMQP 1.0 without I/O, as `docs/amqp-endpoint.md` describes it: values, frames, SASL, and endpoints of connections."""
