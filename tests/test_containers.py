"""These tests check that compose.yaml and the Dockerfile agree with the code: commands, files, settings, ports,
environment, volumes.
"""

from __future__ import annotations

import os
import re
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
from xabridge.testing.postgres import free_port

if TYPE_CHECKING:
    from tests.postgres import Postgres

ROOT = Path(__file__).parents[1]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
OURS = ("broker", "worker", "generator")
DATA = "/var/lib/xabridge"
ENVIRONMENT = {"BROKER_PASSWORD": "secret one", "POSTGRES_PASSWORD": "secret-two"}

KEYS = {
    "build", "command", "depends_on", "environment", "healthcheck", "image", "restart", "stop_grace_period", "volumes",
}  # fmt: skip
"""Keys of a service in the compose specification, as far as they are used here."""


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


def test_it_is_a_compose_file() -> None:
    assert set(COMPOSE) == {"name", "services", "volumes"}
    assert re.fullmatch("[a-z0-9][a-z0-9_-]*", COMPOSE["name"])
    for name, service in SERVICES.items():
        assert set(service) <= KEYS, name
        assert isinstance(service["image"], str)
        assert service["restart"] in {"no", "unless-stopped"}
        assert all(isinstance(part, str) for part in service["command"])
        assert all(isinstance(value, str) for value in service["environment"].values())
        for other, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            assert "healthcheck" in SERVICES[other], f"{name} waits for the health of {other}"
        check = service.get("healthcheck")
        if check is not None:
            assert set(check) == {"test", "interval", "timeout", "retries"}
            assert check["test"][0] == "CMD"
            assert all(re.fullmatch("[0-9]+s", check[key]) for key in ("interval", "timeout"))


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
    assert f"('127.0.0.1', {broker_config().listen[0].port})" in SERVICES["broker"]["healthcheck"]["test"][-1]
    port = command("worker").health.rpartition(":")[2]
    assert f"http://127.0.0.1:{port}/" in SERVICES["worker"]["healthcheck"]["test"][-1]
    for service in ("broker", "worker"):
        compile(SERVICES[service]["healthcheck"]["test"][-1], service, "exec")


@pytest.mark.parametrize("service", ["worker", "generator"])
def test_a_node_has_a_name_and_a_log_of_its_own_on_its_volume(service: str) -> None:
    configuration = configuration_from(here(service, str(command(service).config)), ENVIRONMENT)
    assert configuration.node == f"{service}-1"
    assert configuration.log is not None
    assert configuration.log.startswith(f"file://{DATA}/")


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
        for name, value in service["environment"].items():
            if name.endswith("PASSWORD"):
                assert value == f"${{{name}:?set {name}}}"
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
    assert set(copied) == {*re.findall(r'"(\w+)"', wheel), "docs"}
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for path in [*copied, "containers/requirements.lock", "pyproject.toml", "README.md", "LICENSE"]:
        assert (ROOT / path).exists()
        assert f"!{path}" in ignored
    assert 'ENTRYPOINT ["xabridge"]' in DOCKERFILE
    assert f"VOLUME {DATA}" in DOCKERFILE


@pytest.mark.slow
def test_the_commands_do_on_this_machine_what_they_do_in_containers(postgres: Postgres, tmp_path: Path) -> None:
    """Broker, worker and generator with their commands and files; only places are replaced by those of this machine."""
    port, probe = free_port(), free_port()
    places = {
        "0.0.0.0:5672": f"127.0.0.1:{port}",
        "@broker:5672": f"@127.0.0.1:{port}",
        "0.0.0.0:8080": f"127.0.0.1:{probe}",
        "shop:${POSTGRES_PASSWORD}@postgres:5432/shop": postgres.create_database().partition("://")[2],
        "2000": "30",
    }
    running = {}
    with ExitStack() as stack:
        for service in OURS:
            data = tmp_path / service
            data.mkdir()
            replaced = {**places, DATA: str(data)}
            for inside, outside in mounted(service).items():
                file = data / Path(inside).name
                file.write_text(_replaced((ROOT / outside).read_text(encoding="utf-8"), replaced), encoding="utf-8")
                replaced[inside] = str(file)
            told = [_replaced(part, replaced) for part in SERVICES[service]["command"]]
            running[service] = process = subprocess.Popen(
                [sys.executable, "-m", "xabridge.cli", *told],
                env={**os.environ, **ENVIRONMENT},
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            if service != "generator":
                assert process.stdout is not None
                assert process.stdout.readline(), f"{service} did not start"
        said, _ = running["generator"].communicate(timeout=100)
        assert running["generator"].returncode == 0, said
        assert "every order once as a row and once as an invoice" in said
        with urllib.request.urlopen(f"http://127.0.0.1:{probe}/", timeout=30) as response:
            assert response.status == 200
        running["worker"].terminate()
        assert running["worker"].wait(60) == 0


def _replaced(text: str, places: dict[str, str]) -> str:
    for old, new in places.items():
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--users", "users", "--user-from-env", "shop=NO_SUCH_VARIABLE"], "that variable to be set"),
        (["--user-from-env", "shop=BROKER_PASSWORD"], "there is no file of users"),
    ],
)
def test_a_user_that_cannot_be_set_is_named(flags: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", *flags]) == 2
    assert told in capsys.readouterr().err
