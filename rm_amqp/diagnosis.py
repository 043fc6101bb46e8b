"""For operators: what the broker tells of a branch in doubt, and whether a broker can be used at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dtx.amqp.conditions import Condition as Unmet
from dtx.protocol.conditions import RefusedError
from rm_amqp.decider.election import founding_in_use
from rm_amqp.decider.tokens import WrongTokenError
from rm_amqp.management import ManagementClient
from xa import XaError
from xa.diagnosis import Check, Diagnosis, Health, not_opened
from xa.holdings import MAX_HOLDINGS, Holding, InDoubtBranch, Relation
from xa.telemetry.conditions import BY_NAME, Level
from xa.telemetry.conditions import CONDITIONS as EVERY_CONDITION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from dtx.protocol.conditions import Refusal
    from dtx.protocol.replies import Details
    from rm_amqp.decider.election import Foundings
    from rm_amqp.decider.tokens import FoundingMessage, Token
    from rm_amqp.settings import Settings
    from xa.telemetry.conditions import Condition

REPORT_PAGE: Final = 100
"""Branches that are asked for at a time, with what each of them holds."""
CONDITIONS: Final = "conditions"
"""The subject of a check that names none of them."""
NAMED: Final = 3
"""So many queues or branches are named."""
_ADVICE: Final = "follow the message: credentials, permissions, or a broker with these transactions"


def in_doubt_branch(details: Details, now_s: float) -> InDoubtBranch:
    """A branch as the broker tells of it. Its age is by the broker's clock, compared with ours."""
    holdings = tuple(_holdings(details))
    age_s = max(now_s - details.since_ms / 1000, 0.0)
    omitted = max(len(holdings) - MAX_HOLDINGS, 0)
    return InDoubtBranch(
        details.xid, age_s, details.owner, details.outcome, holdings[:MAX_HOLDINGS], omitted
    )  # fmt: skip


def _holdings(details: Details) -> Iterator[Holding]:
    for held in details.holdings:
        if held.retired:
            yield Holding(Relation.FROM, held.queue, "message", held.retired)
        if held.posted:
            yield Holding(Relation.TO, held.queue, "message", held.posted)


def diagnose(settings_of: Callable[[], Settings], try_it: Callable[[], None]) -> Diagnosis:
    """The checks of parsing the open string and opening a new instance with it."""
    try:
        settings = settings_of()
        try_it()
    except XaError as error:
        return not_opened(error, "usable", _ADVICE, server="broker")
    return Diagnosis(tuple(_usable(settings, "distributed transactions")))


# --- what the broker itself finds wrong -------------------------------------------------------------------------------


def condition_checks(open_string: str) -> Iterator[Check]:
    """A check of each condition that the broker says holds; one, if it says that none does, or does not say."""
    try:
        with ManagementClient(open_string) as management:
            answer = management.ask("conditions")
    except RefusedError as error:
        yield Check(Health.OK, CONDITIONS, *_not_said(error.refusal))
        return
    except XaError as error:
        yield Check(Health.WARN, CONDITIONS, f"the broker does not say what is wrong: {error.message}", "ask again")
        return

    holding = {one["name"]: one for one in answer["conditions"] if one["count"]}
    for condition in EVERY_CONDITION:
        if condition.name in holding:
            yield _holds(condition, holding[condition.name])
    for name in holding.keys() - BY_NAME.keys():
        yield Check(Health.WARN, CONDITIONS, f"{name}, which only a newer version knows", "use the broker's version")
    if answer["looked"] is None:
        yield Check(
            Health.OK, CONDITIONS, "the broker has not looked at all of its queues yet", "ask again in a minute"
        )
    elif not holding:
        yield Check(Health.OK, CONDITIONS, "the broker finds nothing wrong with its queues and branches")


def _not_said(refusal: Refusal) -> tuple[str, str]:
    """Why the broker does not say what is wrong, and what to do about that."""
    if refusal.condition != Unmet.UNAUTHORIZED:
        return "not known: the broker is of a version that does not look for what is wrong", ""
    return "not known: this user may not look at the broker", "let it look: view = true in [broker.permissions.NAME]"


def _holds(condition: Condition, found: Mapping[str, Any]) -> Check:
    names = [str(one["name"]) for one in found["worst"][:NAMED]]
    more = int(found["count"]) - len(names)
    of = [*names, f"{more} more"] if more > 0 and names else names
    said = f"{condition.means}: {', '.join(of)}" if of else condition.means
    health = Health.FAIL if condition.level is Level.PAGE else Health.WARN
    return Check(health, condition.name, said, f"first: {condition.command}; then: {condition.then}", condition)


# --- a broker that decides --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TokenSummary:
    """The result of browsing the token queues."""

    foundings: int
    founding: FoundingMessage | None
    """The one that counts, where that can be seen."""
    unseen: tuple[int, ...] = ()
    """The slots whose tokens could not be seen."""


def token_summary(foundings: Foundings, tokens: Sequence[Token]) -> TokenSummary:
    """The contents of these messages. WrongTokenError: they do not belong together."""
    found = founding_in_use(foundings, tokens)
    if isinstance(found, bytes):
        raise WrongTokenError(f"decider {found.hex()} uses the tokens, but its founding message is missing")
    if found is None and len(foundings) == 1:
        (found,) = foundings
    if found is None:
        return TokenSummary(len(foundings), None)
    there = {token.slot for token in tokens if token.founder == found.founder}
    return TokenSummary(len(foundings), found, tuple(slot for slot in range(found.slots + 1) if slot not in there))


def diagnose_decider(settings_of: Callable[[], Settings], look: Callable[[], TokenSummary]) -> Diagnosis:
    """The checks of parsing the open string and looking at the tokens."""
    try:
        settings = settings_of()
        tokens = look()
    except XaError as error:
        return not_opened(error, "usable", _ADVICE, server="broker")
    checks = [*_usable(settings, "local transactions"), _tokens(settings, tokens)]
    for slot in tokens.unseen:
        advice = "look again; if it stays like this, name another token_queue as soon as nothing is in doubt"
        found = f"none can be seen in {settings.token_queue}.{slot}: a client holds it at this moment, or it is lost"
        checks.append(Check(Health.WARN, "token", found, advice))
    return Diagnosis(tuple(checks))


def _usable(settings: Settings, what: str) -> Iterator[Check]:
    who = f"as {settings.user}" if settings.user else "without a name"
    where = ("amqps://" if settings.tls else "amqp://") + ",".join(map(str, settings.brokers))
    yield Check(Health.OK, "usable", f"{where}: {what}, {who}")
    if settings.plain_without_tls and not settings.tls:
        advice = "use amqps://, and remove plain_without_tls"
        yield Check(Health.WARN, "encryption", "the password is sent as it is, without TLS", advice)


def _tokens(settings: Settings, tokens: TokenSummary) -> Check:
    name, founding = settings.token_queue, tokens.founding
    if founding is not None:
        found = f"{founding.slots + 1} in {name}.0 to {name}.{founding.slots}, of decider {founding.founder.hex()}"
    elif tokens.foundings:
        found = f"{name} was founded {tokens.foundings} times at once; the next start finds out which of them counts"
    else:
        found = f"none yet in {name}; the first start makes them"
    return Check(Health.OK, "tokens", found)
