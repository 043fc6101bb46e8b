"""The shop: orders in a queue become rows and invoices. What the demo, the containers and the crash tests are made of.

`Shop` says where its broker and its database are, `EmbeddedServers` runs both as processes of this machine, `place`
puts orders into the queue, `python -m xabridge.demo.shop` turns them into rows and invoices, and `Audit` compares the
three.
"""

from xabridge.demo.shop.audit import Audit, Figures, ShopProbe
from xabridge.demo.shop.embedded_servers import EmbeddedServers
from xabridge.demo.shop.orders import INVOICES, ORDERS, Order, handle, orders_from, place
from xabridge.demo.shop.shop import Shop
from xabridge.demo.shop.worker import WorkerProcess
from xabridge.testing.postgres import EmbeddedPostgres, PostgresMissing

__all__ = [
    "INVOICES",
    "ORDERS",
    "Audit",
    "EmbeddedPostgres",
    "EmbeddedServers",
    "Figures",
    "Order",
    "PostgresMissing",
    "Shop",
    "ShopProbe",
    "WorkerProcess",
    "handle",
    "orders_from",
    "place",
]
