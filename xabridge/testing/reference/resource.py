"""ReferenceResource: a complete `xa.ResourceManager`, the client of a ReferenceStore."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from xa.flags import TMUSEASYNC
from xa.switch import Switch
from xabridge.testing.reference.branch import Association
from xabridge.testing.reference.driver import ReferenceDriver

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xa.diagnosis import Diagnosis
    from xa.holdings import InDoubtBranch
    from xa.resource import Registrar
    from xabridge.testing.reference.store import ReferenceStore


class ReferenceResource(Switch[Association]):
    """One client of `store`. `flags` are the switch's: any of TMREGISTER, TMNOMIGRATE, TMUSEASYNC. The open string is
    the store's `url`."""

    _driver_class: ClassVar[type[ReferenceDriver]] = ReferenceDriver

    def __init__(self, store: ReferenceStore, registrar: Registrar | None = None, flags: int = TMUSEASYNC) -> None:
        self._store = store
        self._reference = self._driver_class(store, flags)
        super().__init__(self._reference, registrar)

    def in_doubt(self, rmid: int, flags: int = 0, count: int = 1000) -> Sequence[InDoubtBranch]:
        return self.page("in_doubt", self._reference.reports, rmid, flags, count)

    def diagnose(self, open_string: str) -> Diagnosis:
        return self._store.diagnosis(open_string)


@dataclass(frozen=True, slots=True)
class ReferenceFactory:
    """An `xa.ResourceFactory`: makes clients of one store."""

    store: ReferenceStore
    flags: int = TMUSEASYNC

    def __call__(self, registrar: Registrar) -> ReferenceResource:
        return ReferenceResource(self.store, registrar, self.flags)
