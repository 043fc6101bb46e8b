"""One connection to a broker: proton, the endpoint without I/O, its links, and the socket that drives it."""
