"""The resource manager of a broker with AMQP 0-10's class `dtx`: `amqp010://` and `amqp010s://`.

The XA verbs are those of `xa.switch`, over a `QpidDriver`. There is no `in_doubt` (`xa.holdings`): the
broker tells the xids of prepared branches and nothing else, so that `recover` lists those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rm_amqp.amqp010.diagnosis import diagnose
from rm_amqp.amqp010.driver import QpidDriver
from rm_amqp.amqp010.work import Work
from xa.switch import Switch

if TYPE_CHECKING:
    from rm_amqp.amqp010.qpid_session import QpidSession
    from xa import Registrar
    from xa.diagnosis import Diagnosis


class QpidResource(Switch[Work]):
    """One instance.

    An association can be resumed only in the thread of control that suspended it: end with TMMIGRATE answers
    XA_NOMIGRATE. A branch that is not prepared belongs to the instance that began it.
    """

    driver: QpidDriver
    sends_messages: Final = True

    def __init__(self, registrar: Registrar | None = None, driver: QpidDriver | None = None) -> None:
        super().__init__(driver or QpidDriver(), registrar)

    def session(self, rmid: int) -> QpidSession:
        session: QpidSession = super().session(rmid)
        return session

    def diagnose(self, open_string: str) -> Diagnosis:
        """Opens a driver of its own, and closes it again."""
        return diagnose(open_string)
