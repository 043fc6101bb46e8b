"""This process is the one that tests stop: a manager over a database that decides and a reference store in another
process.

    python -m tests.crash.stopped_child ADDRESS AUTHKEY URL LEASE_S

It commits one transaction. After the decision it writes "decided" and waits for a line. Then it writes the outcome of
the commit, and ends with the next line.
"""

from __future__ import annotations

import sys

from bench.crash.points import hooked
from tm import ResourceConfig, TransactionError, TransactionManager
from tm.recovery import lease
from tm.resources import find_factory
from xabridge.testing.reference.remote import RemoteReference

NODE = "orders-1"


def say(what: str) -> None:
    sys.stdout.write(what + "\n")
    sys.stdout.flush()


def resources(address: str, authkey: bytes, url: str, *, stops: bool = False) -> dict[str, ResourceConfig]:
    """`ledger` decides, `shop` takes part; with `stops` as the module's docstring says."""

    def wait(when: str, _: str) -> None:
        if when == "after":
            say("decided")
            sys.stdin.readline()

    made = find_factory("ledger", ResourceConfig(url, "decider"))
    waiting = hooked(wait, ("decide",))
    ledger = ResourceConfig(url, "decider", lambda registrar: waiting(made(registrar)) if stops else made(registrar))
    shop = ResourceConfig("reference://shop", factory=lambda _: RemoteReference(address, authkey, "shop"))
    return {"ledger": ledger, "shop": shop}


def main() -> None:
    address, authkey, url, lease_s = sys.argv[1:]
    lease.LEASE_S = float(lease_s)  # type: ignore[misc]  # so that a test need not wait for long
    with TransactionManager(NODE, None, resources(address, bytes.fromhex(authkey), url, stops=True)) as tm:
        try:
            with tm.begin() as tx:
                tx.enlist("ledger")
                tx["shop"].write("order", 1)
        except TransactionError as error:
            say(f"{type(error).__name__}: {error}")
        else:
            say("committed")
        sys.stdin.readline()


if __name__ == "__main__":
    main()
