"""`python -m bench.calls` counts how many of our functions an enlistment and a commit of two branches call, and how
deep.

They are counted by a profile function (`sys.setprofile`). Only the frames of our own packages count; the standard
library is not ours to shorten.

- `begin`: one call of `TransactionManager.begin`.
- `enlist`: one call of `Transaction.enlist`, the first of this resource in its transaction.
- `work`: what the application does then: a message sent at a broker, a row inserted into a database.
- `commit`: one call of `Transaction.commit` with two branches: two ends, two prepares, the force, two commits, the end.

They are counted over two reference resource managers (`reference`), over two of our brokers, in processes of
their own (`amqp`), and over one of these and PostgreSQL (`database`, which is enlisted second).

Every figure is taken twice: in the `main` thread, in which signal handlers run and wait for the end of the call
(`docs/decisions/0024-signals-wait-for-the-call.md`), and in another `thread`. The threads that look after timeouts and
idle connections now and then are not counted.

`calls` is the number of calls, `depth` the largest number of our frames on one stack, `modules` the number of modules
that have them. `packages` divides the calls: those outside of `tm` are the resource managers'. The server of the
reference resource managers does not count, because with any other resource manager it is another process.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections import Counter
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from bench.transactions import manager_over
from rm_amqp import Message
from tm import TransactionManager
from tm.log import FileLog
from xabridge.testing.broker import BrokerProcess
from xabridge.testing.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import Self

    Listed = Callable[[str, Counter[str], list[str]], None]

SUMMARY: Final = "our calls and frames in an enlistment, and in a commit of two branches"

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("xabridge", "xa", "dtx", "rm_amqp", "rm_db", "tm")
SERVER: Final = "/reference/server.py"
ROUNDS: Final = 5
"""Every figure is the least of so many: on a busy machine a server answers later, and is waited for once more."""
OVER: Final = ("reference", "amqp", "database")
"""The resources of each row of figures."""
_FOLDERS: Final = {f"{ROOT / package}/": package for package in PACKAGES}


class Profile:
    """Counts the calls of our functions between `start` and `stop`, in the thread that calls these."""

    def __init__(self) -> None:
        self.functions: Counter[str] = Counter()
        self.packages: Counter[str] = Counter()
        self.deepest: list[str] = []
        self._modules: set[str] = set()
        self._counting = False

    def __enter__(self) -> Self:
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def start(self) -> None:
        """From here on it counts."""
        self._counting = True

    def stop(self) -> dict[str, Any]:
        """The figures since `start`."""
        self._counting = False
        figures = {
            "calls": self.functions.total(),
            "depth": len(self.deepest),
            "modules": len(self._modules),
            "packages": dict(sorted(self.packages.items())),
        }
        self.deepest = []
        self.functions.clear()
        self.packages.clear()
        self._modules.clear()
        return figures

    def _profile(self, frame: FrameType, event: str, _argument: object) -> None:
        if not self._counting or event != "call":
            return
        package = _package_of(frame)
        if package is None:
            return

        code = frame.f_code
        self.packages[package] += 1
        self._modules.add(code.co_filename)
        self.functions[_name_of(frame)] += 1
        stack = []
        at: FrameType | None = frame
        while at is not None:
            if _package_of(at) is not None:
                stack.append(_name_of(at))
            at = at.f_back
        if len(stack) > len(self.deepest):
            self.deepest = stack


def _name_of(frame: FrameType) -> str:
    code = frame.f_code
    return f"{Path(code.co_filename).relative_to(ROOT)} {code.co_qualname}"


def _package_of(frame: FrameType) -> str | None:
    """The package of ours in which the function of `frame` stands; None: it is not ours, or the server's."""
    name = frame.f_code.co_filename
    if name.endswith(SERVER):
        return None
    return next((package for folder, package in _FOLDERS.items() if name.startswith(folder)), None)


def measure(*, quick: bool, listed: Listed | None = None, over: str = OVER[0]) -> dict[str, Any]:  # noqa: ARG001
    """A `bench.command.Benchmark`, over one kind of resources; `listed` gets the functions that each figure counts."""
    figures: dict[str, Any] = {}

    def work() -> None:
        figures["thread"] = _figures(over, listed)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return {"main": _figures(over, None), **figures}


@contextmanager
def _manager(over: str, folder: Path) -> Iterator[TransactionManager]:
    """A manager with the resources `one` and `two`."""
    if over == "reference":
        with manager_over(FileLog(folder, "bench")) as manager:
            yield manager
        return

    with ExitStack() as stack:
        resources = {"one": _broker(folder / "one", stack)}
        if over == "amqp":
            resources["two"] = _broker(folder / "two", stack)
        if over == "database":
            server = EmbeddedPostgres(folder / "postgres")
            stack.callback(server.remove)
            server.start()
            resources["two"] = server.create_database()
            engine = sa.create_engine(resources["two"].replace("postgresql://", "postgresql+psycopg://"))
            with engine.begin() as connection:
                connection.execute(sa.text("CREATE TABLE orders (id integer)"))
            engine.dispose()
        yield stack.enter_context(TransactionManager("bench", FileLog(folder / "log", "bench"), resources))


def _broker(folder: Path, stack: ExitStack) -> str:
    folder.mkdir()
    broker = BrokerProcess(folder)
    broker.start()
    stack.callback(broker.kill)
    return f"amqp://127.0.0.1:{broker.port}/"


def _work(resource: Any) -> None:
    """What an application does under one branch."""
    if hasattr(resource, "send"):
        resource.send("orders", Message(b"an order"))
    elif hasattr(resource, "execute"):
        resource.execute(sa.text("INSERT INTO orders VALUES (1)"))
    else:
        resource.write("key", 1)


def _figures(over: str, listed: Listed | None) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    lists: dict[str, tuple[Counter[str], list[str]]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="xabridge-bench-") as folder,
        Profile() as profile,
        _manager(over, Path(folder)) as manager,
    ):
        for _ in range(3):  # the first transactions make what later ones find
            with manager.begin() as transaction:
                for name in ("one", "two"):
                    _work(transaction[name])

        def counted(name: str, work: Callable[[], Any]) -> Any:
            profile.start()
            result = work()
            functions, deepest = Counter(profile.functions), list(profile.deepest)
            measured = profile.stop()
            if name not in figures or measured["calls"] < figures[name]["calls"]:
                figures[name], lists[name] = measured, (functions, deepest)
            return result

        for _ in range(ROUNDS):
            transaction = counted("begin", manager.begin)
            counted("enlist", partial(transaction.enlist, "two"))
            counted("work", partial(_work, transaction["two"]))
            transaction.enlist("one")
            _work(transaction["one"])
            counted("commit", transaction.commit)

    if listed is not None:
        for name, (functions, deepest) in lists.items():
            listed(f"{over}: {name}", functions, deepest)
    return figures


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.calls", description=SUMMARY)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--list", action="store_true", help="which functions are called, and how often")
    arguments = parser.parse_args()

    def listed(name: str, functions: Counter[str], deepest: list[str]) -> None:
        print(f"{name}: the deepest stack, and the functions by their calls")
        for depth, function in enumerate(reversed(deepest), 1):
            print(f"  {depth:5} {function}")
        for function, count in functions.most_common():
            print(f"  {count:5} × {function}")

    figures = {over: measure(quick=False, listed=listed if arguments.list else None, over=over) for over in OVER}
    if arguments.json:
        print(json.dumps(figures))
        return
    for over, where, name, each in (
        (over, where, name, each)
        for over, measured in figures.items()
        for where, verbs in measured.items()
        for name, each in verbs.items()
    ):
        packages = ", ".join(f"{package} {count}" for package, count in each["packages"].items())
        print(
            f"{over:10} {where:7} {name:7} {each['calls']:4} calls {each['depth']:3} frames {each['modules']:3} modules"
            f"  ({packages})"
        )


if __name__ == "__main__":
    main()
