"""The shop: orders in a queue become rows and invoices. What the demo, the containers and the crash tests are made of.

`Shop` says where its broker and its database are, `Backstage` runs both as processes of this machine, `place` puts
orders into the queue, `python -m bench.shop` turns them into rows and invoices, and `Audit` compares the three.
"""

from bench.postgres import EmbeddedPostgres, PostgresMissing
from bench.shop.audit import Audit, Figures, Gauge
from bench.shop.backstage import Backstage
from bench.shop.orders import INVOICES, ORDERS, Order, handle, orders_from, place
from bench.shop.places import Shop
from bench.shop.worker import WorkerProcess

__all__ = [
    "INVOICES",
    "ORDERS",
    "Audit",
    "Backstage",
    "EmbeddedPostgres",
    "Figures",
    "Gauge",
    "Order",
    "PostgresMissing",
    "Shop",
    "WorkerProcess",
    "handle",
    "orders_from",
    "place",
]
