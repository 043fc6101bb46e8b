"""A shop on Django, with a consumer beside it, in one file. The tests call it."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import django
from django.conf import settings

if not settings.configured:
    settings.configure(
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["testserver"],
        SECRET_KEY="of a test",  # noqa: S106
        MIDDLEWARE=[f"{__name__}.orm_middleware"],
        DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "shop", "TIME_ZONE": "Asia/Tokyo"}},
        USE_TZ=True,
    )
    django.setup()

from asgiref.sync import sync_to_async
from django.db import IntegrityError, connection, connections, models, transaction
from django.http import Http404, HttpResponse, JsonResponse
from django.urls import path

from xabridge import App, Tx
from xabridge.frameworks.django import DjangoOrm

app = App("xabridge.toml")
orm = DjangoOrm(app, default="shop")
orm_middleware = orm.middleware
told: list[int] = []


class Order(models.Model):  # type: ignore[misc]  # Django has no types
    """An order."""

    number = models.IntegerField(primary_key=True)
    customer = models.TextField()
    details = models.JSONField(default=dict)
    placed = models.DateTimeField(auto_now_add=True)

    class Meta:
        app_label = "shop"


class Invoice(models.Model):  # type: ignore[misc]  # Django has no types
    """What a consumer makes of it."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE)

    class Meta:
        app_label = "shop"


def place(request: Any) -> HttpResponse:
    row = json.loads(request.body)
    order = Order.objects.create(details={"by": "hand"}, **row)
    transaction.on_commit(lambda: told.append(order.number))
    request.tx.send("orders", row)
    if order.customer == "nobody":
        raise Http404
    if order.customer == "everybody":
        return HttpResponse("too many", status=500)
    return JsonResponse(row, status=201)


def orders(_request: Any) -> JsonResponse:
    return JsonResponse({"numbers": list(Order.objects.order_by("number").values_list("number", flat=True))})


def refuse(request: Any) -> HttpResponse:
    """Answers as Django REST framework does for an error, when ATOMIC_REQUESTS is set."""
    place(request)
    transaction.set_rollback(True)
    return JsonResponse({"detail": "invalid"}, status=400)


def swallow(request: Any) -> HttpResponse:
    place(request)
    with suppress(IntegrityError):
        place(request)
    return HttpResponse("ok")


def only_send(request: Any) -> HttpResponse:
    request.tx.send("orders", {"number": 1})
    return HttpResponse("sent")


async def place_later(request: Any) -> HttpResponse:
    row = json.loads(request.body)
    await Order.objects.acreate(**row)
    await request.tx.asend("orders", row)
    return HttpResponse("created", status=418 if row["customer"] == "teapot" else 500)


urlpatterns = [
    path("place", place),
    path("apart", transaction.non_atomic_requests(place)),
    path("orders", orders),
    path("refuse", refuse),
    path("swallow", swallow),
    path("send", only_send),
    path("later", place_later),
]


@app.consumer("orders")
def handle(row: dict[str, Any], tx: Tx) -> None:
    with transaction.atomic():
        Invoice.objects.create(order_id=row["number"])
    tx.send("invoices", row["number"])


@app.consumer("counted")
def count(_number: int) -> None:
    transaction.on_commit(lambda: told.append(Order.objects.count()))


@app.consumer("twice")
def create_twice(number: int) -> None:
    Order.objects.create(number=number, customer="Ada")
    with suppress(IntegrityError):
        Order.objects.create(number=number, customer="again")


@app.consumer("awaited")
async def create_awaited(number: int, tx: Tx) -> None:
    def create() -> None:
        try:
            with orm.take_part(app.tx):
                Order.objects.create(number=number, customer="Ada")
        finally:
            connections.close_all()

    await sync_to_async(create)()
    await tx.asend("created", number)


def make_tables() -> None:
    with connection.schema_editor() as editor:
        editor.create_model(Order)
        editor.create_model(Invoice)
