"""SASL in front of proton, whose own SASL stays off: the server's and the client's side, without I/O.

A client may leave SASL out and begin with AMQP's own header: it is taken as ANONYMOUS, where that is allowed.
There is one try per connection. Which frame is legal when stands in two tables. A shell sends `output`, feeds
what it receives, carries out a `computation` (off its event loop) and tells the result by `computed`, until
the layer is `done`, with AMQP's first bytes in `rest`, or `failed`, with the reason in `failure`.
"""

from dtx.amqp.sasl.client import ClientPolicy, SaslClient
from dtx.amqp.sasl.server import SaslServer, ServerPolicy

__all__ = ["ClientPolicy", "SaslClient", "SaslServer", "ServerPolicy"]
