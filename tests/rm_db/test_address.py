"""These tests cover open strings."""

from __future__ import annotations

import pytest

from rm_db.address import Address
from xa import Code, XaError


def test_settings_of_ours_are_taken_out() -> None:
    address = Address.parse(
        "postgresql://u:p@h:1/d?sslmode=require&xa_pool_size=3&options=-c%20a%3Db&xa_pooler=transaction"
    )
    assert address == Address(
        "postgresql://u:p@h:1/d?sslmode=require&options=-c%20a%3Db",
        pool_size=3,
        pool_wait_s=30,
        reply_s=60,
        pooled=True,
    )


def test_without_settings() -> None:
    assert Address.parse("sqlite:////var/lib/shop.db").url == "sqlite:////var/lib/shop.db"
    assert Address.parse("sqlite:///x?xa_reply_s=1.5") == Address("sqlite:///x", 20, 30.0, 1.5, pooled=False)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("xa_pool_szie=3", "xa_pool_szie"),
        ("xa_pool_size=none", "none"),
        ("xa_pool_size=0", "xa_pool_size"),
        ("xa_reply_s=-1", "xa_reply_s"),
        ("xa_reply_s=nan", "xa_reply_s"),
        ("xa_pool_wait_s=inf", "xa_pool_wait_s"),
        ("xa_pooler=sometimes", "sometimes"),
    ],
)
def test_a_wrong_setting_is_told(settings: str, told: str) -> None:
    with pytest.raises(XaError) as raised:
        Address.parse(f"postgresql://h/d?{settings}")
    assert raised.value.code is Code.XAER_INVAL
    assert told in raised.value.message
