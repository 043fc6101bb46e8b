"""These tests check that compose.yaml and the Dockerfile agree with the code: commands, files, settings, ports,
environment, volumes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from dtx.amqp.sasl.mechanisms import Identity
from dtx.broker.access.permissions import Action
from dtx.broker.config import BrokerConfig, load
from rm_amqp.settings import parse
from tests.cli import parsed
from tm import ConsumerSettings, ResourceConfig, configuration_from
from xabridge.cli import main
from xabridge.demo.shop.command import shop_of
from xabridge.demo.shop.orders import INVOICES, ORDERS
from xabridge.testing.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from tests.postgres import Postgres

    Launch: TypeAlias = Callable[[str, list[str], dict[str, Path]], subprocess.Popen[str]]

ROOT = Path(__file__).parents[1]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
OURS = ("broker", "worker", "generator")
DATA = "/var/lib/xabridge"
CHECK = Path(sys.executable).with_name("check-jsonschema")
ENVIRONMENT = {"BROKER_PASSWORD": "secret one", "POSTGRES_PASSWORD": "secret-two"}

METRICS = ("prometheus", "grafana")
PORT = 9464


def mounted(service: str) -> dict[str, str]:
    """Where the configuration files of a service are in the container → here."""
    binds = [volume.split(":") for volume in SERVICES[service]["volumes"] if volume.startswith("./")]
    return {bind[1]: bind[0] for bind in binds}


def here(service: str, path: str) -> Path:
    """A file of a container, in the repository."""
    return ROOT / mounted(service)[path]


def command(service: str) -> Any:
    """The command of a service, as the command line understands it."""
    return parsed(SERVICES[service]["command"])


def broker_config() -> BrokerConfig:
    return load(here("broker", str(command("broker").config)), {})


@pytest.mark.slow  # a process of two seconds
def test_it_is_what_the_compose_specification_says() -> None:
    done = subprocess.run(
        [CHECK, "--builtin-schema", "vendor.compose-spec", str(ROOT / "compose.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_starts_in_order_and_as_nobody() -> None:
    assert re.fullmatch("[a-z0-9][a-z0-9_-]*", COMPOSE["name"])
    for name, service in SERVICES.items():
        assert service["restart"] in {"no", "unless-stopped"}
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert name in OURS or service["user"] not in {"root", "0"}
        assert service.get("profiles") == (["metrics"] if name in METRICS else None)
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), "nobody from outside without a password"
        for other in service.get("depends_on", {}):
            assert service["depends_on"][other] == {"condition": "service_healthy"}
            assert "healthcheck" in SERVICES[other], f"{name} waits for the health of {other}"
    assert re.search("^USER xabridge$", DOCKERFILE, re.MULTILINE)


def test_every_version_is_pinned() -> None:
    images = {name: service["image"] for name, service in SERVICES.items() if name not in OURS}
    assert set(images) == {"postgres", *METRICS}
    for image in images.values():
        assert re.fullmatch(r"[a-z/]+:v?\d+(\.\d+)+(-[a-z]+)?", image), image
    assert re.search(r"^ARG BASE=python:\d+\.\d+\.\d+-slim-[a-z]+$", DOCKERFILE, re.MULTILINE)
    for lock in ("requirements.lock", "build.lock"):
        assert f"--require-hashes -r {lock}" in DOCKERFILE
        packages = re.findall(r"^\w\S*==\S+.*$", (ROOT / "containers" / lock).read_text(), re.MULTILINE)
        assert packages
        assert all(package.endswith("\\") for package in packages), "a package without its hashes"


def test_data_survives_and_every_volume_is_declared() -> None:
    named = {}
    for name, service in SERVICES.items():
        for volume in service["volumes"]:
            source, target, *_ = volume.split(":")
            if source.startswith("./"):
                assert (ROOT / source).is_file()
                assert volume.endswith(":ro")
            else:
                assert source not in named, "two services on one volume: two managers on one log"
                named[source] = name, target
    assert set(named) == set(COMPOSE["volumes"])
    assert all(named[service] == (service, DATA) for service in OURS)


@pytest.mark.parametrize("service", OURS)
def test_the_command_is_one_of_the_command_line(service: str) -> None:
    assert command(service).command in {"broker", "shop"}
    assert str(command(service).config) in mounted(service)


def test_the_broker_is_configured_for_who_comes() -> None:
    config = broker_config()
    assert config.store == f"sqlite:///{DATA}/broker.db"
    assert [address.host for address in config.listen] == ["0.0.0.0"]  # noqa: S104 — that is the point
    user, variable = command("broker").user_from_env[0].split("=")
    assert config.users is not None
    assert config.users.is_relative_to(DATA)
    assert config.permissions is not None
    identity = Identity(user)
    for action in (Action.CONSUME, Action.PRODUCE, Action.CREATE):
        assert all(config.permissions.may(identity, action, queue) for queue in (ORDERS, INVOICES))
    assert config.permissions.may_coordinate(identity, user)

    for service in ("worker", "generator"):
        url = configuration_from(here(service, str(command(service).config)), ENVIRONMENT).resources["broker"]
        assert isinstance(url, ResourceConfig)
        settings = parse(url.url, ENVIRONMENT)
        assert settings.user == user
        assert settings.password == ENVIRONMENT[variable]
        assert (settings.brokers[0].host, settings.brokers[0].port) == ("broker", config.listen[0].port)


def test_health_checks_ask_where_the_service_listens() -> None:
    assert broker_config().http is not None
    assert str(broker_config().http) == f"0.0.0.0:{PORT}"
    worker = configuration_from(here("worker", str(command("worker").config)), ENVIRONMENT)
    assert worker.http == f"0.0.0.0:{PORT}"
    for service in ("broker", "worker"):
        program, *told = SERVICES[service]["healthcheck"]["test"][1:]
        assert program == "xabridge"
        assert parsed(told).url == f"http://127.0.0.1:{PORT}/ready"
    scraped = yaml.safe_load((ROOT / "containers" / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in scraped}
    assert targets == {"xabridge-broker": [f"broker:{PORT}"], "xabridge-manager": [f"worker:{PORT}"]}


@pytest.mark.parametrize("service", ["worker", "generator"])
def test_a_node_has_a_name_and_a_log_of_its_own_on_its_volume(service: str) -> None:
    configuration = configuration_from(here(service, str(command(service).config)), ENVIRONMENT)
    assert configuration.node == f"{service}-1"
    assert configuration.log is not None
    assert configuration.log.startswith(f"file://{DATA}/")


@pytest.mark.slow
def test_the_database_is_the_one_of_the_compose_file(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    postgres = SERVICES["postgres"]
    user, database = postgres["environment"]["POSTGRES_USER"], postgres["environment"]["POSTGRES_DB"]
    for service in ("worker", "generator"):
        shop = shop_of(here(service, str(command(service).config)))
        assert shop.database == f"postgresql://{user}:{ENVIRONMENT['POSTGRES_PASSWORD']}@postgres:5432/{database}"
        assert shop.mode == "two-phase"
    prepared = int(re.findall("max_prepared_transactions=([0-9]+)", " ".join(postgres["command"]))[0])
    assert prepared >= 2 * command("worker").workers


def test_secrets_come_from_the_environment_and_stand_nowhere() -> None:
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if name.endswith("PASSWORD"):
                assert value == f"${{{name}:?set {name}}}"
    # Where it were interpolated, the shop would need it too: compose reads the whole file, whatever the profile is.
    assert COMPOSE["secrets"] == {"grafana_password": {"environment": "GRAFANA_PASSWORD"}}
    for ours in OURS:
        used = re.findall(r"\$\{(\w+)\}|password_env=(\w+)|=(\w+_PASSWORD)", _texts(ours))
        names = {name for found in used for name in found if name}
        assert names <= set(SERVICES[ours]["environment"]), ours


def _texts(service: str) -> str:
    files = "\n".join((ROOT / path).read_text(encoding="utf-8") for path in mounted(service).values())
    return files + " ".join(SERVICES[service]["command"])


def test_time_to_stop_is_longer_than_a_consumer_takes() -> None:
    grace = int(SERVICES["worker"]["stop_grace_period"].removesuffix("s"))
    assert grace > ConsumerSettings(ORDERS).shutdown_s + 10  # and the manager's own close


def test_the_image_has_every_package_and_what_it_needs_to_build() -> None:
    copied = re.findall(r"^COPY (\w+) \1$", DOCKERFILE, re.MULTILINE)
    wheel = re.findall(r"^packages = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[0]
    assert set(copied) == {*re.findall(r'"(\w+)"', wheel), "docs", "tools"}
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()

    for path in [
        *copied,
        "containers/requirements.lock",
        "containers/build.lock",
        "pyproject.toml",
        "README.md",
        "LICENSE",
    ]:
        assert (ROOT / path).exists()
        assert f"!{path}" in ignored
    assert 'ENTRYPOINT ["xabridge"]' in DOCKERFILE
    assert f"VOLUME {DATA}" in DOCKERFILE


def handle_orders(postgres: Postgres, folder: Path, launch: Launch, data: Callable[[str], str], *, stops: bool) -> None:
    """Has broker, worker and generator handle some orders, with their commands and files.

    `launch` starts a service with its arguments and its files, by where they are for it. Only places are replaced by
    those of this machine, with `data` instead of DATA. `stops`: the worker gets a signal that is sent to its process.
    """
    port, *probes = free_port(), free_port(), free_port()
    places = {
        "0.0.0.0:5672": f"127.0.0.1:{port}",
        "@broker:5672": f"@127.0.0.1:{port}",
        "shop:${POSTGRES_PASSWORD}@postgres:5432/shop": postgres.create_database().partition("://")[2],
        "2000": "30",
    }
    running = {}
    with ExitStack() as stack:
        for service, probe in zip(OURS, [*probes, 0], strict=True):
            replaced = {**places, DATA: data(service), f"0.0.0.0:{PORT}": f"127.0.0.1:{probe}"}
            files = {}
            for inside, outside in mounted(service).items():
                file = files[inside] = folder / Path(inside).name
                file.write_text(_replaced((ROOT / outside).read_text(encoding="utf-8"), replaced), encoding="utf-8")
            told = [_replaced(part, replaced) for part in SERVICES[service]["command"]]
            running[service] = process = launch(service, told, files)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            if service != "generator":
                assert process.stdout is not None
                assert process.stdout.readline(), f"{service} did not start"

        said, _ = running["generator"].communicate(timeout=200)
        assert running["generator"].returncode == 0, said
        assert "every order once as a row and once as an invoice" in said
        for service, probe in zip(("broker", "worker"), probes, strict=True):
            told = [part.replace(str(PORT), str(probe)) for part in SERVICES[service]["healthcheck"]["test"][2:]]
            assert main(told) == 0
            with urllib.request.urlopen(f"http://127.0.0.1:{probe}/metrics", timeout=30) as response:
                assert b"xabridge_" in response.read()

        if stops:
            running["worker"].terminate()
            assert running["worker"].wait(60) == 0


@pytest.mark.slow
def test_the_commands_do_on_this_machine_what_they_do_in_containers(postgres: Postgres, tmp_path: Path) -> None:
    def launch(_service: str, told: list[str], files: dict[str, Path]) -> subprocess.Popen[str]:
        places = {inside: str(file) for inside, file in files.items()}
        return subprocess.Popen(
            [sys.executable, "-m", "xabridge.cli", *(_replaced(part, places) for part in told)],
            env={**os.environ, **ENVIRONMENT},
            stdout=subprocess.PIPE,
            text=True,
        )

    def data(service: str) -> str:
        (tmp_path / service).mkdir()
        return str(tmp_path / service)

    handle_orders(postgres, tmp_path, launch, data, stops=True)


def _replaced(text: str, places: dict[str, str]) -> str:
    for old, new in places.items():
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--users", "users", "--user-from-env", "shop=NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE is not set; set it"),
        (["--user-from-env", "shop=BROKER_PASSWORD"], "there is no file of users"),
    ],
)
def test_a_user_that_cannot_be_set_is_named(flags: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", *flags]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif("XABRIDGE_IMAGE" not in os.environ, reason="part of the long form: XABRIDGE_IMAGE")
@pytest.mark.skipif(not all(map(shutil.which, ("buildah", "debootstrap"))), reason="buildah and debootstrap")
@pytest.mark.skipif(os.geteuid() != 0, reason="debootstrap needs root")
def test_the_image_is_built_and_its_commands_run(postgres: Postgres, tmp_path: Path) -> None:
    """The image's own user has every command of it, and the shop in three containers handles its orders. A chroot has
    this machine's network, and PostgreSQL is this machine's."""
    work = os.environ.get("XABRIDGE_IMAGE_WORK", str(tmp_path))
    done = subprocess.run(
        [ROOT / "containers" / "image.sh"],
        env={**os.environ, "WORK": work, "AMQP_PORT": str(free_port()), "HTTP_PORT": str(free_port())},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert 'ready: {"ready": true' in done.stdout

    buildah = ["buildah", "--storage-driver", "vfs", "--root", f"{work}/storage", "--runroot", f"{work}/run"]
    made = []

    def launch(_service: str, told: list[str], files: dict[str, Path]) -> subprocess.Popen[str]:
        container = subprocess.check_output([*buildah, "from", "localhost/xabridge"], text=True).strip()
        made.append(container)
        options = [f"--env={name}={value}" for name, value in ENVIRONMENT.items()]
        options += [f"--volume={file}:{inside}:ro" for inside, file in files.items()]
        # A signal ends `buildah run` only: what runs in the chroot ends by `timeout`.
        command = [*buildah, "run", "--isolation", "chroot", *options, container, "--", "timeout", "120", "xabridge"]
        return subprocess.Popen([*command, *told], stdout=subprocess.PIPE, text=True)

    tmp_path.chmod(0o755)
    try:
        handle_orders(postgres, tmp_path, launch, lambda _service: DATA, stops=False)
    finally:
        for container in made:
            subprocess.run([*buildah, "rm", container], stdout=subprocess.DEVNULL, check=False)
