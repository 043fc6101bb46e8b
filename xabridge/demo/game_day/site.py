"""GameSite: the site of a game day, as processes of this machine: a broker with users, PostgreSQL, and two nodes.

Its folder has what a person needs: the configurations, `worker.env` with the password of the nodes (their environment),
the broker's store in `disk/`, back-ups in `backup/`. The site also is the nodes' and the broker's supervisor: `start`,
`stop` and `restart` stand for `systemctl start` or `docker compose start`. What it starts ends with it.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rm_amqp import Message
from rm_amqp.management import ManagementClient
from tm import RolledBack, TransactionManager
from xabridge.demo.game_day import small_disk
from xabridge.demo.shop import Audit, EmbeddedPostgres, Shop, ShopProbe, WorkerProcess, orders_from, place
from xabridge.demo.shop.orders import DEAD, open_books
from xabridge.demo.shop.shop import BRANCH_TIMEOUT_S, BROKER
from xabridge.testing.broker import BrokerProcess
from xabridge.testing.ports import free_port
from xabridge.testing.process_lifetime import marked_environment
from xabridge.text import several

if TYPE_CHECKING:
    from typing import Self

    from xabridge.demo.shop import Figures
    from xabridge.demo.shop.audit import ShopAudit

HOST: Final = "127.0.0.1"
SEED: Final = 1
ASK_S: Final = 2.0
OK: Final = 200
NODES: Final = ("node-1", "node-2")
IN_DOUBT_S: Final = 3
"""After so long a branch in doubt is an alarm; 15 minutes unless configured."""
PASSWORD: Final = "SHOP_PASSWORD"  # noqa: S105 — the name of a variable
TOKEN: Final = "XABRIDGE_DEMO_TOKEN"  # noqa: S105 — as above
AT_ONCE: Final = 4
"""Orders that are placed while the second node is not lost yet."""
LOOK_AGAIN_S: Final = 1.0
FILL_AGAIN_S: Final = 0.2
MOST_FILLS: Final = 300
TIMES_FULL: Final = 5
"""After so many looks at which it is full, it stays so."""
CONFIGURATION: Final = """\
[broker]
listen = ["{listen}"]
http = "{http}"
store = "{store}"
users = "{users}"
anonymous = true
in_doubt_s = {in_doubt_s}

[broker.permissions.operator]
consume = ["*"]
produce = ["*"]
create = ["*"]
coordinate = "all"
view = true
manage = true
read_payload = true

[broker.permissions.shop]
consume = ["orders", "invoices"]
produce = ["orders", "orders.dead", "invoices"]
create = ["orders", "orders.dead", "invoices"]
coordinate = "own"

[broker.permissions.anonymous]
view = true
"""


class Refused(Exception):
    """The supervisor was asked for what it can't do; the message says why."""


def trouble_of(name: str, status: int, said: dict[str, Any]) -> str:
    """What is not well with a process, by its answer at /ready; empty if all is."""
    if status != OK:
        return f"{name} is not ready"
    return f"the disk of {name} is full" if said.get("full") else ""


class GameSite:
    """The site below `folder`. `with` starts and ends it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk = folder / "disk"
        self.disk_trouble = ""
        """Why its disk is not a small one that can be filled; empty if it is."""
        self.placed = 0
        """Orders that were placed so far."""
        self._refused = 0
        self._token = secrets.token_hex(16)
        self.operator_password = secrets.token_hex(8)
        self._http = {name: f"{HOST}:{free_port()}" for name in (BROKER, *NODES)}
        self._listen = f"{HOST}:{free_port()}"
        self._nodes: dict[str, WorkerProcess] = {}
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as closing:
            self._open(closing)
            self._closing = closing.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _open(self, closing: ExitStack) -> None:
        for made in (self.disk, self.folder / "broker", self.folder / "backup"):
            made.mkdir()
        self.disk_trouble = small_disk.why_not(self.disk)
        if not self.disk_trouble:
            small_disk.mount(self.disk)
        self._postgres = EmbeddedPostgres(self.folder / "postgres")
        closing.callback(self._postgres.remove)
        self._postgres.start()
        self._configure(self._postgres.create_database("shop"))

        configuration = str(self.folder / "broker.toml")
        self._broker = BrokerProcess(self.folder / "broker", "--config", configuration, "--store", self.store)
        closing.callback(self._broker.kill)
        self._broker.start()
        self._front = closing.enter_context(
            TransactionManager("front", f"file://{self.folder}/log-front", {BROKER: self.operator})
        )
        self._probe = ShopProbe(Shop(f"amqp://{self._listen}", self.shop.database))
        closing.callback(self._probe.close)
        for node in NODES:
            self._nodes[node] = WorkerProcess(self.folder / f"{node}.toml", environment=self.environment)
            closing.callback(self._nodes[node].kill)
        self._nodes[NODES[0]].start()

    def _configure(self, database: str) -> None:
        """Writes what the processes read."""
        for user, password in (("operator", self.operator_password), ("shop", first := secrets.token_hex(8))):
            subprocess.run(  # noqa: S603 — our own command
                [sys.executable, "-m", "dtx", "--users", self.folder / "users", "--set-password", user],
                input=f"{password}\n",
                text=True,
                check=True,
            )
        self.write_password(first, "worker.env")
        text = CONFIGURATION.format(
            listen=self._listen,
            http=self._http[BROKER],
            store=self.store,
            users=self.folder / "users",
            in_doubt_s=IN_DOUBT_S,
        )
        (self.folder / "broker.toml").write_text(text, encoding="utf-8")

        broker = f"amqp://shop:${{{PASSWORD}}}@{self._listen}/?branch_timeout={BRANCH_TIMEOUT_S}"
        self.shop = Shop(broker, database)
        open_books(database)
        for node in NODES:
            file, log = self.folder / f"{node}.toml", self.folder / f"log-{node}"
            self.shop.configure(file, node, log, http=self._http[node], http_token_env=TOKEN)

    @property
    def store(self) -> str:
        """The URL of the broker's store."""
        return f"sqlite:///{self.disk}/store.db"

    @property
    def operator(self) -> str:
        """The broker's URL for the operator."""
        return f"amqp://operator:{self.operator_password}@{self._listen}"

    def health(self, name: str) -> str:
        """Where a process says whether it is ready."""
        return f"http://{self._http[name]}/ready"

    @property
    def addresses(self) -> dict[str, str]:
        """Where the processes answer over HTTP that are to run, by their names."""
        return {name: self._http[name] for name in (BROKER, NODES[0])}

    def write_password(self, password: str, file: str) -> None:
        """Writes a file with the environment of the nodes."""
        (self.folder / file).write_text(f"{PASSWORD}={password}\n", encoding="ascii")

    def environment(self) -> dict[str, str]:
        """What the nodes, and the commands of a person, find in their environment."""
        shop = dict(line.split("=", 1) for line in (self.folder / "worker.env").read_text().splitlines() if "=" in line)
        return {
            **marked_environment(),
            **shop,
            TOKEN: self._token,
            "XABRIDGE_BROKER": self.operator,
            "BROKER": self.health(BROKER),
            "NODE_1": self.health("node-1"),
            "BACKUP": f"sqlite:///{self.folder}/backup/broker.db",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        }

    # --- what a person does ---------------------------------------------------------------------------------

    def carry_out(self, command: str, *, captured: bool) -> tuple[int, str]:
        """Carries out a command as a person types it: a word for the supervisor, or one for the shell, in the site's
        folder. The exit code, and what it printed if that is `captured`."""
        match command.split():
            case [("start" | "stop" | "restart") as word, name]:
                try:
                    return 0, self._supervise(word, name)
                except (Refused, RuntimeError) as error:
                    return 1, str(error).strip().splitlines()[-1]
            case _:
                return self._shell(command, captured=captured)

    def _shell(self, command: str, *, captured: bool) -> tuple[int, str]:
        before = signal.signal(signal.SIGINT, lambda *_: None) if not captured else None

        try:  # Ctrl+C ends the command of a person, not the game
            done = subprocess.run(  # noqa: S602 — what the person at the keyboard has typed
                command,
                shell=True,
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL if captured else None,
                stdout=subprocess.PIPE if captured else None,
                stderr=subprocess.STDOUT if captured else None,
                text=True,
                check=False,
            )
        finally:
            if before is not None:
                signal.signal(signal.SIGINT, before)
        return done.returncode, (done.stdout or "").rstrip()

    def _supervise(self, word: str, name: str) -> str:
        process = self._broker if name == BROKER else self._nodes.get(name)
        if process is None:
            raise Refused(f"there is no {name}: {BROKER}, {', '.join(NODES)}")
        if word != "start" and process.running:
            process.stop()
        if word == "stop":
            return f"{name} does not run"
        if not process.running:
            process.kill()
            process.start()
        return f"{name} runs"

    # --- what is broken -------------------------------------------------------------------------------------

    def stop(self, name: str) -> None:
        """Stops a process in order."""
        self._supervise("stop", name)

    def start(self, name: str) -> None:
        """Starts it, if it does not run."""
        self._supervise("start", name)

    def place(self, count: int) -> None:
        """Puts the next orders into the queue."""
        place(self._front, islice(orders_from(SEED), self.placed, self.placed + count))
        self.placed += count

    def place_refused(self, count: int) -> str:
        """Tries to put the next orders into the queue, as `missing` does again and again; how that was refused."""
        self._refused = count
        return self._place_again()

    def _place_again(self) -> str:
        try:
            self.place(self._refused)
        except RolledBack as error:
            return str(error)
        self._refused = 0
        return ""

    def send(self, queue: str, message: Message) -> None:
        """Puts something else into a queue."""
        with self._front.begin() as tx:
            tx[BROKER].send(queue, message)

    def fill_disk(self, file: str) -> bool:
        """Has a file take all the space beside the store, until the broker refuses messages and says that it is full;
        whether it does."""
        taken, times = self.disk / file, 0
        for _ in range(MOST_FILLS):
            small_disk.fill(taken)  # again: the broker finds some space in its own files
            try:
                self.send("filler", Message("x" * 1000))
                times = 0
            except RolledBack:
                times += bool(self.ask(BROKER)[1].get("full"))
            if times == TIMES_FULL:
                return True
            time.sleep(FILL_AGAIN_S)
        return False

    def lose_node(self) -> None:
        """Starts the second node, and has it lost in phase two, with orders for both nodes."""
        with (self.folder / "node-2.err").open("a") as errors:
            lost = subprocess.Popen(  # noqa: S603 — our own command
                [sys.executable, "-m", "xabridge.demo.game_day.lost_node", "--config", self.folder / "node-2.toml"],
                stdout=errors,
                stderr=errors,
                env=self.environment(),
                process_group=0,
            )

        try:
            while lost.poll() is None:
                self.place(AT_ONCE)
                with suppress(subprocess.TimeoutExpired):
                    lost.wait(LOOK_AGAIN_S)
        finally:
            lost.kill()
            lost.wait()

    def rotate(self) -> None:
        """Gives the user of the nodes another password at the broker, and closes the user's connections."""
        self.write_password(password := secrets.token_hex(8), "worker.new.env")
        self._must_do(f"echo {password} | xabridge broker set-password shop --yes")
        with ManagementClient(self.operator) as management:
            for connection in management.ask("connections"):
                if connection["user"] == "shop":
                    management.ask("close-connection", connection=str(connection["number"]))

    def back_up(self) -> None:
        """Makes a back-up of the broker's store."""
        self._must_do("xabridge broker backup --config broker.toml backup/broker.db")

    def _must_do(self, command: str) -> None:
        code, said = self.carry_out(command, captured=True)
        if code:
            raise RuntimeError(f"{command}: {said}")

    # --- how it stands --------------------------------------------------------------------------------------

    def look(self) -> Figures:
        """The figures of the shop."""
        return self._probe.look()

    def ask(self, name: str) -> tuple[int, dict[str, Any]]:
        """What a process answers at /ready: the status, 0 where there is no answer, and the JSON."""
        connection = http.client.HTTPConnection(self._http[name], timeout=ASK_S)
        try:
            connection.request("GET", "/ready")
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError):
            return 0, {}
        finally:
            connection.close()

    def missing(self) -> str:
        """What is not well yet; empty if all is: every order handled, nothing in doubt, every process ready."""
        figures = self.look()
        if not figures.whole:
            return "the broker or the database does not answer"
        for name in (BROKER, NODES[0]):
            if trouble := trouble_of(name, *self.ask(name)):
                return trouble

        if self._refused and (why := self._place_again()):
            return f"{several(self._refused, 'order')} refused: {why}"
        if figures.dead:
            return f"{several(figures.dead, 'dead letter')} in {DEAD}"
        if figures.in_doubt:
            return f"{several(figures.in_doubt, 'branch')} in doubt"
        if figures.waiting or figures.rows < self.placed:
            return f"{figures.rows} of {several(self.placed, 'order')} handled"
        return ""

    def prove(self) -> ShopAudit:
        """Stops the nodes, and compares orders, rows and invoices."""
        for node in NODES:
            self.stop(node)
        return Audit(self.shop, self._front).prove(islice(orders_from(SEED), self.placed), self.look().in_doubt)
