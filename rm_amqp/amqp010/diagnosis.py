"""For operators: whether a broker that speaks AMQP 0-10 can be used, and what it does not guarantee."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rm_amqp.amqp010.channel import Refused
from rm_amqp.amqp010.driver import QpidDriver
from rm_amqp.amqp010.settings import parse
from rm_amqp.errors import ConnectionLost, TimedOut
from xa import Code, XaError, xa_error
from xa.diagnosis import Check, Diagnosis, Health, not_opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rm_amqp.amqp010.settings import Settings010

_ADVICE: Final = "follow the message: credentials, the virtual host, or a broker with AMQP 0-10"
TESTED: Final = "Broker-J"


def diagnose(open_string: str) -> Diagnosis:
    """The checks of parsing the open string and opening a new driver with it."""
    driver = QpidDriver()
    try:
        settings = parse(open_string)
        driver.look(open_string)
        timers = [xid for xid, timeout_s in driver.timers() if timeout_s]
    except (ConnectionLost, TimedOut, Refused) as why:
        return not_opened(xa_error(Code.XAER_RMFAIL, str(why)), "usable", _ADVICE, server="broker")
    except XaError as error:
        return not_opened(error, "usable", _ADVICE, server="broker")
    finally:
        driver.drop()
    return Diagnosis(tuple(_checks(settings, driver.server, len(timers))))


def _checks(settings: Settings010, server: dict[str, object], timers: int) -> Iterator[Check]:
    who = f"as {settings.user}" if settings.user else "without a name"
    product = " ".join(str(server[key]) for key in ("product", "version") if key in server)
    yield Check(Health.OK, "usable", f"{settings.url}: dtx, {who}")
    if TESTED in product:
        yield Check(Health.OK, "broker", product)
    else:
        advice = "test it as docs/qpid.md says before you rely on it"
        yield Check(Health.WARN, "broker", f"{product or 'it does not say what it is'}: never tried with this", advice)

    if timers:
        advice = "open the resource once: timers of branches of ours are stopped then; others' are their owners' matter"
        found = f"{timers} prepared branches have a timer that rolls them back"
        yield Check(Health.WARN, "timers", found, advice)
    else:
        yield Check(Health.OK, "timers", "no prepared branch has a timer that rolls it back")
    if not settings.branch_timeout_s:
        found = "branch_timeout=0: what a client that dies between end and prepare leaves is never freed"
        yield Check(Health.WARN, "branch timeout", found, "leave branch_timeout out, or set it")
    found = "the broker does not list unprepared branches, tells no holdings, and completes nothing by hand"
    yield Check(Health.OK, "limits", found)
    if settings.plain_without_tls and not settings.tls:
        advice = "use amqp010s://, and remove plain_without_tls"
        yield Check(Health.WARN, "encryption", "the password is sent as it is, without TLS", advice)
