"""A simulated Azure Service Bus that enforces the documented rules, and the tests of the client over it."""
