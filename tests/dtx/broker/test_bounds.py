"""Rule 9: everything is bounded, and a refusal is clear and does not harm others. Queues take so many messages and
octets, and a commit never fails for lack of room."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery, Link, Message, Terminus, ulong

from dtx.amqp.conditions import Condition
from dtx.amqp.values import Described, Symbol, Uint, Ulong
from dtx.broker.queues import removals
from dtx.broker.settings import Limits, QueueSettings, Settings, WhenFull
from dtx.protocol.commands import Commit, Declare, Discharge, Fence, GetTimeout, Prepare, Rollback, Start
from dtx.protocol.conditions import CODE_OF, Refusal
from dtx.store.contract import Batch, StoreStopped
from dtx.store.contract import Step as StoreStep
from tests.cases import each
from tests.dtx.broker.peer import (
    OK,
    XID,
    Peer,
    World,
    closed,
    condition_of,
    dead,
    filled,
    frame,
    manage,
    post,
    queue_told,
    told,
)
from tests.dtx.broker.strangers import FLOW, TRANSFER, Stranger
from xa import Code, Xid


def error_in(outcome: Described) -> tuple[str, Code]:
    """The condition and the code of a rejected outcome."""
    rejected: Any = outcome.value
    condition, _, info = rejected[0].value
    return condition, CODE_OF[info["xa-status"]]


# -- transactions, connections and nodes
@pytest.mark.parametrize(
    ("limits", "command"),
    [(Limits(branches=1), Declare(Start(Xid(2, b"g")))), (Limits(transactions=1), Declare())],
)
def test_transactions_and_branches_are_bounded(limits: Limits, command: Declare) -> None:
    """And the others notice nothing."""
    world = World(Settings(limits=limits))
    control = world.connect().coordinator()
    txn_id = control.declare(Start(XID))
    refusal = control.refused(command)
    code = Code.XA_RETRY if limits.branches == 1 else Code.XAER_RMERR  # others may have the branches
    assert (refusal.condition, refusal.code) == (Condition.RESOURCE_LIMIT, code)
    world.connect().coordinator().declare()
    control.discharge(txn_id)


@pytest.mark.parametrize("limits", [{"transaction_messages": 2}, {"transaction_octets": 30}, {"unstored_octets": 30}])
@pytest.mark.parametrize("start", [None, Start(XID)], ids=["local", "branch"])
def test_what_a_transaction_posts_is_bounded(start: Start | None, limits: dict[str, int]) -> None:
    """The message that is too much is rejected, the others are committed."""
    _, peer = filled(settings=Settings(limits=Limits(**limits)))
    control, sender = peer.coordinator(), peer.sender("q")
    txn_id = control.declare(start)
    outcomes = [told(peer.post(sender, number, txn_id))[1] for number in range(3)]
    assert [outcome.descriptor for outcome in outcomes] == [Delivery.ACCEPTED, Delivery.ACCEPTED, Delivery.REJECTED]
    assert error_in(outcomes[2]) == (Condition.RESOURCE_LIMIT, Code.XAER_RMERR)
    assert not closed(sender)
    control.discharge(txn_id)
    if start is not None:
        assert peer.ask(Commit(XID, one_phase=True)) == OK
    assert peer.drained("q") == [0, 1]


def test_what_all_open_transactions_post_is_bounded() -> None:
    """Over all connections, and with messages that have come in part; what is decided or prepared counts no more."""
    world = World(Settings(limits=Limits(unstored_octets=100_000)))
    peer, other = world.connect(), world.connect()
    control, sender, theirs = peer.coordinator(), peer.sender("q"), other.sender("q")
    local, branch = control.declare(), control.declare(Start(XID))
    large = b"x" * 40_000
    for txn_id in (local, branch):
        assert told(peer.post(sender, large, txn_id))[1].descriptor == Delivery.ACCEPTED
    refused = told(peer.post(sender, large, local))[1]
    assert error_in(refused) == (Condition.RESOURCE_LIMIT, Code.XA_RETRY), "others have the room"
    theirs.delivery("part")
    for _ in range(2):
        theirs.stream(large)
        world.pump()

    assert condition_of(theirs).condition == Condition.RESOURCE_LIMIT
    assert condition_of(theirs).code is Code.XA_RETRY
    control.discharge(branch)
    assert peer.ask(Prepare(XID)) == OK
    assert told(peer.post(sender, large, local))[1].descriptor == Delivery.ACCEPTED
    control.discharge(local, fail=True)
    assert peer.ask(Rollback(XID)) == OK
    assert world.container.resource.unstored.octets == 0


@pytest.mark.parametrize("settle", [False, True])
@pytest.mark.parametrize("start", [None, Start(XID)], ids=["local", "branch"])
def test_what_a_transaction_retires_is_bounded(start: Start | None, *, settle: bool) -> None:
    """One disposition too many can't be answered alone: the transaction is rolled back, and nothing is lost."""
    world, peer = filled(*range(3), settings=Settings(limits=Limits(transaction_messages=2)))
    control, receiver = peer.coordinator(), peer.receiver("q", 3)
    txn_id = control.declare(start)
    for _ in range(3):
        taken = peer.taken(receiver)
        peer.retire(taken[0], txn_id, settle=settle)
    refused = control.refused(Discharge(txn_id))
    assert refused.condition == Condition.ROLLBACK
    assert "retires 2 messages" in refused.description
    if start is not None:
        peer.ask(Rollback(XID))
    peer.vanish()
    assert sorted(world.connect().drained("q")) == [0, 1, 2]


@pytest.mark.parametrize("settled", [False, True])
def test_what_a_transaction_acquires_is_bounded(settled: bool) -> None:
    """The link gets no more for this transaction, and goes on when it is discharged."""
    world, peer = filled(*range(5), settings=Settings(limits=Limits(transaction_messages=2)))
    control, receiver = peer.coordinator(), peer.receiver("q", settled=settled)
    txn_id = control.declare()
    peer.acquire_for(receiver, txn_id)
    world.more(receiver, 3)
    for number in range(2):
        taken = peer.taken(receiver)
        assert taken[1].body == number
        if not settled:
            peer.retire(taken[0], txn_id)
    assert peer.take(receiver) is None
    peer.acquire_for(receiver, None)
    control.discharge(txn_id)
    assert peer.take(receiver) is not None, "credit is left"
    assert peer.drained("q") == [3, 4]


def test_what_waits_for_one_branch_is_bounded() -> None:
    """While a prepare is being forced, commands for its branch wait: not more of them than may."""
    world, peer = filled(settings=Settings(limits=Limits(waiting_commands=3)))
    peer.ended(posts="q")
    peer.ask(GetTimeout(XID))
    peer.request(Prepare(XID))
    for _ in range(5):
        peer.request(Commit(XID))
    world.pump()
    answers = [peer.answer() for _ in range(6)]
    refusals = [answer for answer in answers if isinstance(answer, Refusal)]
    assert [answer for answer in answers if answer == OK] == [OK, OK]
    assert sorted(refusal.condition for refusal in refusals) == sorted(
        [Condition.RESOURCE_LIMIT] * 2 + [Condition.NOT_FOUND] * 2
    )
    assert peer.drained("q") == ["x"]


def test_a_batch_without_changes_waits_for_the_store_beside_another_one(world: World) -> None:
    resource = world.container.resource
    answers: list[object] = []
    batch = Batch()
    batch.finished.append(7)
    resource.submit(batch, answers.append)
    resource.submit(Batch(), answers.append)
    world.pump()
    assert answers == [None, None]
    assert not resource.waiting


def test_fences_are_bounded() -> None:
    _, peer = filled(settings=Settings(limits=Limits(fences=1)))
    assert peer.ask(Fence(1, b"a")) == OK
    assert peer.ask(Fence(1, b"a")) == OK, "the same one again"
    assert peer.refusal(Fence(1, b"b")).condition == Condition.RESOURCE_LIMIT


def test_links_and_sessions_are_bounded() -> None:
    world = World(Settings(limits=Limits(links=3, sessions=2)))
    peer, other = world.connect(), world.connect()
    links = [peer.sender("q") for _ in range(4)]
    assert [closed(link) for link in links] == [False, False, False, True]
    assert condition_of(links[3]).condition == Condition.RESOURCE_LIMIT
    peer.new_session()
    assert len(peer.server.sessions) == 2
    assert not closed(other.sender("q"))
    world.close(links[0])
    assert not closed(peer.sender("q"))
    peer.inject(frame(0x11, [None, Uint(0), Uint(100), Uint(100)], channel=2))
    assert not peer.server.sessions, "a peer that takes more than it may loses its connection"
    assert not closed(other.sender("q"))


def test_queues_are_bounded() -> None:
    """Dynamic nodes of one peer leave those of others."""
    world, peer = filled(settings=Settings(limits=Limits(queues=3)))
    assert not any(closed(peer.receiver(None)) for _ in range(10))
    other = world.connect()
    assert [closed(other.sender(name)) for name in ("b", "c", "d", "b")] == [False, False, True, False]


def test_the_size_of_messages_is_bounded() -> None:
    world, peer = filled(settings=Settings(limits=Limits(message_octets=100_000)))
    sender = peer.sender("q")
    assert sender.remote_max_message_size == 100_000
    assert peer.post(sender, "x" * 90_000).remote_state == Delivery.ACCEPTED
    peer.post(sender, "x" * 110_000)
    assert condition_of(sender).condition == Condition.MESSAGE_SIZE
    assert len(world.connect().drained("q")) == 1


# --- what grows with time, or with what a peer says again and again --------------------
def with_ttl(ttl_ms: int) -> Settings:
    return Settings(queue_defaults=QueueSettings(ttl_ms=ttl_ms, max_deliveries=0))


def test_messages_that_expire_unread_leave_nothing() -> None:
    """Nobody consumes, and messages come and expire: they take no memory, also behind one that lasts."""
    world, peer = filled(settings=with_ttl(500))
    peer.post_many(["lasts"], ttl=1000)
    queue = world.queue()
    for _ in range(15):
        peer.post_many(range(100))
        world.pass_time(1)
    assert (queue.depth, peer.drained("q")) == (1, ["lasts"])
    assert len(queue._order.ready) < 1200
    assert len(queue.expirations) == 1
    assert peer.bodies(peer.receiver("q", 10)) == ["lasts"]


def test_a_message_that_is_given_back_again_and_again_expires_once() -> None:
    world, peer = filled("x", settings=with_ttl(1000))
    receiver, queue = peer.receiver("q"), world.queue()
    for turn in range(51):
        world.more(receiver, 1)
        delivery, _ = peer.taken(receiver)
        if turn == 50:
            world.pass_time(2)
            assert queue.depth == 1, "it is held"
        assert len(queue.expirations) <= 1
        peer.settle(delivery, Delivery.RELEASED)
    world.pass_time(2)
    assert queue.depth == 0


def test_a_browser_that_settles_nothing_is_sent_no_more() -> None:
    """Who asks for unsettled copies gets as many as a consumer may hold; to others they are sent settled."""
    world, peer = filled(*range(12), settings=Settings(limits=Limits(unsettled=5)))
    assert peer.drained("q") == list(range(12))
    link = peer.session.receiver("unsettled")
    link.source.address, link.source.distribution_mode = "q", Terminus.DIST_MODE_COPY
    link.snd_settle_mode = Link.SND_UNSETTLED
    link.open()
    world.more(link, 100)
    found: list[list[Any]] = []
    while taken := list(iter(lambda: peer.take(link), None)):
        found.append([message.body for _, message in taken])
        for delivery, _ in taken:
            delivery.settle()
        world.pump()
    assert found == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]


def test_flows_of_a_peer_that_reads_nothing_are_not_kept() -> None:
    """A browser for whom much waits already asks for more, again and again."""
    world, _ = filled(*[b"x" * 2000] * 5, settings=Settings(limits=Limits(output_octets=1000)))
    stranger = Stranger(world)
    stranger.greet()
    copies = Described(Ulong(0x28), ["q", None, None, None, None, None, Symbol("copy")])
    stranger.attach(0, source=copies, receiver=True)
    flow = [Uint(0), Uint(2048), Uint(0), Uint(2048), Uint(0), Uint(0)]
    for credit in range(1, 500):
        stranger.server.received(frame(FLOW, [*flow, Uint(credit)]))
    assert len(stranger.server.room.unsent) == 1
    stranger.listen()
    assert [code for _, code, _ in stranger.told()].count(TRANSFER) == 5
    stranger.leave()


# -- queues
OLDEST = WhenFull.DEAD_LETTER
SIZE = len(bytes(Message(body="x" * 100).encode()))


def refused(delivery: Delivery) -> bool:
    if delivery.remote_state != Delivery.REJECTED:
        return False
    condition: Any = delivery.remote.condition
    assert str(condition.name) == "amqp:resource-limit-exceeded"
    assert "the queue q is full" in condition.description
    return True


def full(**settings: Any) -> Settings:
    """The settings of q."""
    return Settings(queues={"q": QueueSettings(**settings)})


@pytest.mark.parametrize("settings", [{"max_depth": 3}, {"max_octets": 3 * SIZE + 10}])
def test_what_is_too_much_is_refused(settings: dict[str, int]) -> None:
    world, peer = filled(settings=full(**settings))
    bodies = [letter * 100 for letter in "abcd"]
    assert [refused(post(peer, body)) for body in bodies] == [False, False, False, True]
    assert peer.drained("q") == bodies[:3]
    assert peer.bodies(peer.receiver("q", 1)) == bodies[:1]
    assert not refused(post(peer, "e" * 100))
    world = world.crash()
    assert refused(post(world.connect(), "f" * 100))


def test_a_message_that_is_larger_than_the_queue_is_refused_whatever_happens_when_it_is_full() -> None:
    for when_full in WhenFull:
        _, peer = filled(settings=full(max_octets=SIZE, when_full=when_full))
        condition: Any = post(peer, "x" * 200).remote.condition
        assert str(condition.name) == Condition.MESSAGE_SIZE
        assert not refused(post(peer, "x" * 100))


@pytest.mark.parametrize("when_full", list(WhenFull))
@pytest.mark.parametrize("settings", [{"max_depth": 4}, {"max_octets": 4 * SIZE + 10}])
@pytest.mark.parametrize("restart", [False, True])
def test_what_branches_post_has_its_room_from_the_start(
    when_full: WhenFull, settings: dict[str, int], *, restart: bool
) -> None:
    """So a commit after a prepare never fails for lack of room, and the branches together post no more than fits."""
    world, peer = filled(settings=full(when_full=when_full, **settings))
    body = "x" * 100
    first, second = (Xid(7, b"%d" % number) for number in range(2))
    peer.prepared(first, posts="q", bodies=(body, body))
    peer.prepared(second, posts="q", body=body)
    if restart:
        world = world.crash()
        peer = world.connect()

    control = peer.coordinator()
    txn_id = control.declare()
    post(peer, body, txn_id)
    assert int(post(peer, body, txn_id).remote_state) == 0x34, "told in the transaction"
    assert refused(post(peer, body)), "an open transaction has the last place"
    control.discharge(txn_id, fail=True)
    assert not refused(post(peer, body))
    if when_full is WhenFull.REFUSE:
        assert refused(post(peer, body))
    assert peer.ask(Commit(first)) == OK
    assert peer.ask(Rollback(second)) == OK
    queue = world.queue()
    assert queue.depth == 3
    assert (queue.counters.pending, queue.counters.pending_octets) == (0, 0)


@pytest.mark.parametrize("settings", [{"max_depth": 3}, {"max_octets": 3 * SIZE + 10}])
def test_the_oldest_make_room(settings: dict[str, int]) -> None:
    _, peer = filled(settings=full(when_full=OLDEST, **settings))
    bodies = [letter * 100 for letter in "abcdef"]
    for body in bodies:
        assert not refused(post(peer, body))
    assert peer.drained("q") == bodies[3:]
    assert peer.drained("q.dead") == bodies[:3]
    after = peer.world.crash().connect()
    assert after.drained("q") == bodies[3:]
    assert dead(after) == [("q", "queue full")] * 3


def test_what_is_held_is_not_the_oldest() -> None:
    """Neither by a consumer nor by a branch in doubt, also after a restart. Where nothing can make room, it is
    refused."""
    world, peer = filled(*"abc", settings=full(max_depth=3, when_full=OLDEST))
    for number in range(2):
        peer.prepared(Xid(7, b"%d" % number), takes="q")

    for body in "de":
        assert not refused(post(peer, body))
    assert peer.drained("q") == ["e"]
    assert peer.drained("q.dead") == ["c", "d"]
    world = world.crash()
    peer = world.connect()
    other = peer.receiver("q", 1)
    assert peer.take(other) is not None
    assert refused(post(peer, "f")), "all three are held"
    assert peer.ask(Rollback(Xid(7, b"0"))) == OK
    assert not refused(post(peer, "g"))
    assert peer.ask(Rollback(Xid(7, b"1"))) == OK
    assert peer.drained("q") == ["b", "g"]
    assert peer.drained("q.dead") == ["c", "d", "a"]


def test_a_commit_that_is_too_much_moves_the_oldest_then_and_not_before() -> None:
    world, peer = filled(*"abc", settings=full(max_depth=3, when_full=OLDEST))
    first, second = (Xid(7, b"%d" % number) for number in range(2))
    peer.prepared(first, posts="q", bodies="de")
    peer.prepared(second, posts="q", body="f")
    assert peer.drained("q") == ["a", "b", "c"], "a rollback would have moved them for nothing"
    assert refused(post(peer, "x")), "all places are taken by what comes"
    assert peer.ask(Rollback(second)) == OK
    assert peer.ask(Commit(first)) == OK
    assert peer.drained("q") == ["c", "d", "e"]
    assert peer.drained("q.dead") == ["a", "b"]
    assert world.queue("q.dead").counters.pending == 0


def test_full_dead_letters_take_no_more() -> None:
    """Then the queue refuses, as nothing may be lost."""
    queues = {"q": QueueSettings(max_depth=2, when_full=OLDEST), "q.dead": QueueSettings(max_depth=1)}
    _, peer = filled(settings=Settings(queues=queues))
    assert [refused(post(peer, body)) for body in "abcd"] == [False, False, False, True]
    assert peer.drained("q.dead") == ["a"]
    assert peer.bodies(peer.receiver("q.dead", 1)) == ["a"]
    assert not refused(post(peer, "e"))
    assert peer.drained("q") == ["c", "e"]


def test_delayed_messages_take_room_and_make_none() -> None:
    world, peer = filled(settings=full(max_depth=2, when_full=OLDEST))
    post(peer, "a", delay=5000)
    post(peer, "b")
    post(peer, "c")
    assert peer.drained("q") == ["c"]
    world.pass_time(6)
    assert peer.drained("q") == ["a", "c"]
    post(peer, "d")
    assert peer.drained("q.dead") == ["b", "a"]


def test_a_group_that_is_held_makes_room() -> None:
    _, peer = filled(settings=full(max_depth=3, when_full=OLDEST))
    receiver = peer.receiver("q", 1)
    for body in ("g1", "g2", "g3", "g4", "g5"):
        post(peer, body, group_id="g")
    assert peer.drained("q.dead") == ["g2", "g3"]
    assert peer.bodies(receiver) == ["g1"]
    peer.world.more(receiver, 5)
    assert peer.bodies(receiver) == ["g4", "g5"]


@pytest.mark.pure  # replaces a constant of ours
@each("step", StoreStep)
@each("force", [1, 2])
def test_a_crash_while_the_oldest_go_doubles_and_loses_nothing(
    step: StoreStep, force: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings have become smaller at a restart, so that much goes at once."""
    monkeypatch.setattr(removals, "STEP", 20)
    world = World()
    count = 2 * 20 + 10
    world.connect().post_many(range(count))
    forces = 0

    def hook(at: StoreStep) -> None:
        nonlocal forces
        if at is step:
            forces += 1
            if forces == force:
                raise StoreStopped("killed here")

    smaller = full(max_depth=5, when_full=OLDEST)
    world = World(smaller, disk=world.disk, hook=hook)
    world.pass_time(1)
    world = World(smaller, disk=world.disk)
    peer = world.connect()
    assert sorted(peer.drained("q") + peer.drained("q.dead")) == list(range(count))
    world.pass_time(1)
    assert peer.drained("q") == list(range(count - 5, count))
    assert peer.drained("q.dead") == list(range(count - 5))
    told = queue_told(peer)
    assert (told["depth"], told["held"], told["pending"]) == (5, 0, 0)


def settings_of(peer: Peer, queue: str = "q") -> tuple[int, int, str]:
    told = queue_told(peer, queue)
    return told["max-depth"], told["max-octets"], told["when-full"]


def test_an_operator_changes_the_limits() -> None:
    """At once, also after a restart, in place of the configuration; what there is too much of goes then."""
    world, peer = filled(*"abcd", settings=full(max_depth=10))
    assert manage(peer, operation="configure-queue", queue="q", **{"max-depth": ulong(3)}) == {}
    assert refused(post(peer, "e"))
    world.pass_time(1)
    assert peer.drained("q") == ["a", "b", "c", "d"], "only what says so makes room"
    changed = {"when-full": "dead-letter", "max-octets": ulong(10_000)}
    assert manage(peer, operation="configure-queue", queue="q", **changed) == {}

    world.pass_time(1)
    assert peer.drained("q") == ["b", "c", "d"]
    world = world.crash()
    peer = world.connect()
    assert settings_of(peer) == (3, 10_000, "dead-letter")
    assert not refused(post(peer, "e"))
    assert peer.drained("q.dead") == ["a", "b"]
    (entry, *_) = manage(peer, operation="audit")
    assert (entry["what"], entry["about"]["when_full"]) == ("configure-queue", "dead-letter")


def test_settings_go_with_their_queue(world: World, peer: Peer) -> None:
    post(peer, "x", queue="p")
    assert manage(peer, operation="configure-queue", queue="p", **{"max-depth": ulong(3)}) == {}
    assert manage(peer, operation="delete-queue", queue="p", force=True) == {}
    assert not [one for one in world.disk.records.values() if one.kind == "configured"]
    peer = world.crash().connect()
    post(peer, "x", queue="p")
    assert settings_of(peer, "p")[0] == QueueSettings().max_depth


@pytest.mark.parametrize(
    "told", [{}, {"when-full": "drop"}, {"max-depth": "many"}, {"max-depth": -1}, {"when-full": "dead-letter"}]
)
def test_settings_that_are_none_are_refused(told: dict[str, Any]) -> None:
    world, peer = filled(settings=full(dead_letter=""))
    before = settings_of(peer)
    assert isinstance(manage(peer, operation="configure-queue", queue="q", **told), Refusal)
    assert settings_of(peer) == before
    assert not [one for one in world.disk.records.values() if one.kind == "configured"]
