"""The resource manager of brokers that speak AMQP 0-10 with its class `dtx`: Qpid Broker-J.

From the octets up: `values` and `structs` are the codec, `frames` the segments, `connection` and `session` the protocol
without I/O, `channel` the same over a socket. `driver` is the resource manager behind `xa.switch`, `messages` and
`messaging` are what an application works with.
"""
