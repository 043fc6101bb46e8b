"""These fixtures give a test a store and an opened client of it."""

from __future__ import annotations

import pytest

from xabridge.testing.reference import ReferenceResource, ReferenceStore

RMID = 1


@pytest.fixture
def store() -> ReferenceStore:
    return ReferenceStore("a")


@pytest.fixture
def rm(store: ReferenceStore) -> ReferenceResource:
    client = ReferenceResource(store)
    client.open(store.url, RMID)
    return client
