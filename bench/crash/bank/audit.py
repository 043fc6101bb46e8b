"""The bank's auditor counts all of the money and looks for anything left behind, with clients of other projects.

It reads the databases with psycopg and the broker with proton. Beyond these it trusts only the outcomes that the
workers got: the work of committed transactions must be there, and that of rolled back ones must not.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
from proton import Message

from bench.crash.bank.transfers import ACCOUNTS, EAST, OPENING, TOTAL
from bench.crash.ledger import COMMITTED, ROLLED_BACK, Broker

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bench.crash.bank.transfers import Decides, Transfer

TABLES: Final = f"""
    CREATE TABLE account (number integer PRIMARY KEY, balance integer NOT NULL);
    CREATE TABLE entry (transfer integer NOT NULL, account integer NOT NULL, amount integer NOT NULL,
                        attempt text NOT NULL, position serial);
    CREATE INDEX ON entry (transfer);
    INSERT INTO account SELECT number, {OPENING} FROM generate_series(0, {ACCOUNTS - 1}) AS number
"""  # noqa: S608 — of our own constants
"""No key of the entries: a transfer that is done twice has to be seen, not to be refused."""
PLAIN: Final = frozenset({COMMITTED, ROLLED_BACK, "not known yet"})
"""The possible outcomes of a transaction without faulty replies and without interference."""
TOKENS: Final = "xabridge.tokens"
"""The prefix of the token queues by default."""
_PREPARED: Final = """
    SELECT format('prepared %s by %s at %s', gid, owner, prepared) FROM pg_prepared_xacts
    WHERE database = current_database()
"""
_AT_WORK: Final = """
    SELECT format('backend %s, client port %s, blocked by %s, %s since %s: %s',
                  pid, client_port, pg_blocking_pids(pid), state, state_change, query)
    FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle' AND pid <> pg_backend_pid()
"""


class Queues(NamedTuple):
    """The names of a round's queues."""

    orders: str
    credits: str
    receipts: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A change of an account: a debit where `amount` is negative. `attempt` is the transaction's gtrid."""

    transfer: int
    place: str
    account: int
    amount: int
    attempt: str


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that a transaction sent: an amount on its way, or (without one) a receipt."""

    transfer: int
    attempt: str
    amount: int = 0


@dataclass(frozen=True, slots=True)
class Books:
    """What is there, as the databases and the broker say."""

    balances: Mapping[tuple[str, int], int]
    due: Mapping[tuple[str, int], int]
    """What the entries of all rounds have added to each account; everything that follows is of this round."""
    entries: tuple[Entry, ...]
    """Those of one place in the order in which they were written."""
    orders: tuple[int, ...]
    credits: tuple[Sent, ...]
    receipts: tuple[Sent, ...]
    in_doubt: tuple[str, ...] = ()
    """Prepared branches, in words."""
    decisions: tuple[str, ...] = ()
    """Decisions that have not ended, in words."""


@dataclass(slots=True)
class Audit:
    """What was found. `money`: the sum is another one than at first, or a balance is not that of its entries; `lost`:
    transfers that are neither to be done nor done, and transactions that were reported committed and did nothing;
    `duplicated`: transfers that are done more than once, or done and still to be done, and transactions that were
    reported rolled back and did something; `split`: halves of a transaction; `misled`: transactions that were reported
    completed by hand, or in part, where no one did that; `disordered`: transfers that were carried out before an
    earlier one of their group; `left`: branches in doubt and decisions that are not ended. `waiting` and `done` are
    transfers, `shared` those with company in their transaction."""

    money: int = 0
    lost: int = 0
    duplicated: int = 0
    split: int = 0
    misled: int = 0
    disordered: int = 0
    left: int = 0
    waiting: int = 0
    done: int = 0
    shared: int = 0
    details: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        """Whether all is as it has to be."""
        return not self.details

    def note(self, kind: str, what: Iterable[object], why: str) -> None:
        """Adds what was found, if anything was."""
        found = sorted(map(str, what))
        if found:
            setattr(self, kind, getattr(self, kind) + len(found))
            self.details.append(f"{kind}: {why}: {', '.join(found[:10])}")


def compare(transfers: Sequence[Transfer], books: Books, outcomes: Mapping[str, str], *, away: int = 0) -> Audit:
    """The audit of a round with these transfers. `away` is the money that was in the queues of other rounds."""
    audit = Audit()
    _count_money(audit, books, away)
    entries: defaultdict[int, list[Entry]] = defaultdict(list)
    for entry in books.entries:
        entries[entry.transfer].append(entry)
    credits_: defaultdict[int, list[Sent]] = defaultdict(list)
    for sent in books.credits:
        credits_[sent.transfer].append(sent)
    receipts: defaultdict[int, list[Sent]] = defaultdict(list)
    for sent in books.receipts:
        receipts[sent.transfer].append(sent)
    to_do = Counter(books.orders)
    for transfer in transfers:
        number = transfer.number
        audit.waiting += to_do[number]
        audit.done += bool(receipts[number])
        for kind, why in _wrong(transfer, to_do[number], entries[number], credits_[number], receipts[number]):
            audit.note(kind, [number], why)

    debits = [entry for entry in books.entries if entry.amount < 0]
    in_company = Counter(entry.attempt for entry in debits)
    audit.shared = sum(count for count in in_company.values() if count > 1)
    audit.note("disordered", _disordered(transfers, debits), "carried out before an earlier one of their group")

    attempts = {entry.attempt for entry in books.entries}
    kept = [gtrid for gtrid, verdict in outcomes.items() if verdict == COMMITTED and gtrid not in attempts]
    audit.note("lost", kept, "reported committed, without an entry")
    undead = [gtrid for gtrid, verdict in outcomes.items() if verdict == ROLLED_BACK and gtrid in attempts]
    audit.note("duplicated", undead, "reported rolled back, with an entry")
    misled = [f"{gtrid} {verdict}" for gtrid, verdict in outcomes.items() if verdict not in PLAIN]
    audit.note("misled", misled, "nothing was completed by hand, and these were reported so")
    audit.note("left", books.in_doubt, "in doubt")
    audit.note("left", books.decisions, "decisions that are not ended")
    return audit


def _count_money(audit: Audit, books: Books, away: int) -> None:
    there = sum(books.balances.values()) + sum(sent.amount for sent in books.credits) + away
    if there != TOTAL:
        audit.note("money", [there], f"the sum is not {TOTAL}")
    due = {account: OPENING + books.due.get(account, 0) for account in books.balances}
    wrong = [f"{account}: {has}, not {due[account]}" for account, has in books.balances.items() if has != due[account]]
    audit.note("money", wrong, "balances that are not those of the entries")


def _wrong(
    transfer: Transfer, to_do: int, entries: list[Entry], on_way: list[Sent], receipts: list[Sent]
) -> Iterable[tuple[str, str]]:
    """What is wrong with one transfer: kind, and why."""
    debits = [entry for entry in entries if entry.amount < 0]
    arrived = [entry for entry in entries if entry.amount > 0]
    if to_do + len(debits) == 0:
        yield "lost", "transfers that are neither to be done nor begun"
    elif to_do + len(debits) > 1:
        yield "duplicated", "transfers that are begun more than once, or begun and still to be done"

    if len(arrived) + len(on_way) > len(debits):
        yield "duplicated" if debits else "split", "amounts that have arrived, or are on their way, without their debit"
    elif len(arrived) + len(on_way) < len(debits):
        yield "split", "amounts that have left their account and have not arrived, and are not on their way"
    began, sent = Counter(entry.attempt for entry in debits), Counter(each.attempt for each in on_way)
    ended = Counter(entry.attempt for entry in arrived)
    if (transfer.posted and sent - began) or (not transfer.posted and ended != began):
        yield "split", "amounts that left by another transaction than they were sent or arrived by"
    if Counter(receipt.attempt for receipt in receipts) != ended:
        yield "split", "amounts that arrived by another transaction than their receipt was sent by"


def _disordered(transfers: Sequence[Transfer], debits: Iterable[Entry]) -> Iterable[int]:
    """The transfers that have left their account before an earlier one of their group. The accounts of a group are at
    one place, where the debits have an order."""
    groups = {transfer.number: transfer.group for transfer in transfers if transfer.group}
    after: dict[str, set[int]] = defaultdict(set)
    for number, group in groups.items():
        after[group].add(number)

    for debit in debits:
        group = groups.get(debit.transfer, "")
        if group:
            after[group].discard(debit.transfer)
            if any(number < debit.transfer for number in after[group]):
                yield debit.transfer


class Auditor:
    """Looks at the places (their databases by name) and at the broker. `log` is the database of the SqlLog."""

    def __init__(self, broker: str, databases: Mapping[str, str], log: str) -> None:
        self.broker = Broker(broker)
        self._databases = databases
        self._log = log

    def open(self) -> None:
        """Makes the accounts."""
        for database in self._databases.values():
            with psycopg.connect(database, autocommit=True) as connection:
                connection.execute(TABLES.encode())

    def absent(self) -> int:
        """How much of the money is on no account: on its way, or lost."""
        there = 0
        for database in self._databases.values():
            there += sum(int(balance) for balance in self._rows(database, "SELECT balance FROM account"))
        return TOTAL - there

    def order(self, queue: str, transfers: Iterable[Transfer]) -> list[Transfer]:
        """Puts transfers into the queue; those that the broker has acknowledged."""
        left = iter(transfers)
        return self.broker.place(queue, left, _order)

    def books(self, queues: Queues, first: int, decides: Decides) -> Books:
        """All that is there, of transfers from the `first` on. Nothing may be at work."""
        broker = self.broker
        waiting = tuple(int(body["number"]) for body in broker.browse(queues.orders))
        on_way = tuple(
            Sent(int(body["number"]), str(body["attempt"]), int(body["amount"]))
            for body in broker.browse(queues.credits)
        )
        answered = tuple(Sent(int(body["number"]), str(body["attempt"])) for body in broker.browse(queues.receipts))
        balances: dict[tuple[str, int], int] = {}
        due: dict[tuple[str, int], int] = {}
        entries: list[Entry] = []
        in_doubt: list[str] = []
        for place, database in self._databases.items():
            with psycopg.connect(database, autocommit=True) as connection:
                query = "SELECT transfer, account, amount, attempt FROM entry WHERE transfer >= %s ORDER BY position"
                found = connection.execute(query, (first,)).fetchall()
                entries += [Entry(transfer, place, account, amount, by) for transfer, account, amount, by in found]
                sums = connection.execute("SELECT account, sum(amount) FROM entry GROUP BY account").fetchall()
                due |= {(place, number): int(added) for number, added in sums}
                rows = connection.execute("SELECT number, balance FROM account").fetchall()
                balances |= {(place, number): balance for number, balance in rows}
                prepared = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
                in_doubt += [f"{place} {gid}" for (gid,) in connection.execute(prepared).fetchall()]

        if count := broker.in_doubt():
            in_doubt.append(f"{count} at the broker")
        decisions = tuple(self._decisions(decides))
        return Books(balances, due, tuple(entries), waiting, on_way, answered, tuple(in_doubt), decisions)

    def held(self, decides: Decides) -> str:
        """Who holds what, in words, while a round does not go on."""
        lines = [
            f"{self.broker.in_doubt()} in doubt at the broker",
            *(f"decision {one}" for one in self._decisions(decides)),
        ]
        for place, database in self._databases.items():
            lines += [f"{place}: {row}" for row in self._rows(database, _PREPARED) + self._rows(database, _AT_WORK)]
        return "\n".join(lines)

    def _decisions(self, decides: Decides) -> list[str]:
        if decides == "token":
            return [
                f"{queue}: {gtrid}"
                for queue in self.broker.queues()
                if queue.startswith(f"{TOKENS}.")
                for token in self.broker.browse(queue)
                for gtrid, *_ in _token(token)["decided"]
            ]
        if decides == "database":
            return self._rows(self._databases[EAST], "SELECT gtrid FROM xabridge_decision WHERE state <> 'rolled back'")
        if decides == "sql":
            return self._rows(self._log, "SELECT encode(gtrid, 'hex') FROM xabridge_gtrid WHERE state = 'committed'")
        return []  # each node's own: it tells

    @staticmethod
    def _rows(database: str, query: str) -> list[str]:
        with psycopg.connect(database, autocommit=True) as connection:
            return [str(value) for (value,) in connection.execute(query.encode()).fetchall()]


def _order(transfer: Transfer) -> Message:
    message = Message(transfer.body(), durable=True)
    if transfer.group:
        message.group_id = transfer.group
    return message


def _token(body: Any) -> dict[str, Any]:
    with suppress(ValueError):
        fields = json.loads(body)
        if isinstance(fields, dict) and "decided" in fields:
            return fields
    return {"decided": []}
