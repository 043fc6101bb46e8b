"""These tests check the examples for systemd and Kubernetes against their schemas, and the guide's table against the
command.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli import parsed
from tests.docs.guide import ROOT
from xabridge.cli.main import make_parser

CONTAINERS = ROOT / "containers"
ANALYZE = shutil.which("systemd-analyze")


def complaints(unit: Path) -> list[str]:
    """The lines that systemd has about a unit."""
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [line for line in done.stderr.splitlines() if unit.name in line]


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
def test_the_unit_of_systemd(tmp_path: Path) -> None:
    text = (CONTAINERS / "xabridge-run.service").read_text(encoding="utf-8")
    unit = tmp_path / "shop.service"
    unit.write_text(text, encoding="utf-8")
    assert complaints(unit) == []
    for right, wrong in (("KillMode=mixed", "KillMode=most"), ("TimeoutStopSec=", "TimeoutStop="), ("60", "soon")):
        assert right in text
        unit.write_text(text.replace(right, wrong), encoding="utf-8")
        assert complaints(unit), wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deployment", "statefulset"])
def test_what_kubernetes_is_given(name: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    told: Any = yaml.safe_load((CONTAINERS / "kubernetes" / f"{name}.yaml").read_text(encoding="utf-8"))
    validate.validate(told, validate.latest_version(), strict=True)
    with pytest.raises(validate.ValidationError, match="replica"):
        validate.validate({**told, "spec": {**told["spec"], "replica": 3}}, validate.latest_version(), strict=True)
    with pytest.raises(validate.ValidationError, match="template"):
        spec = {name: value for name, value in told["spec"].items() if name != "template"}
        validate.validate({**told, "spec": spec}, validate.latest_version(), strict=True)
    arguments = told["spec"]["template"]["spec"]["containers"][0]["args"]
    assert parsed(arguments[1:]).shutdown_s < told["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]


@pytest.mark.slow
def test_the_driver_of_a_pipeline_on_kubernetes() -> None:
    """Every part fits its schema; executors reach the driver, and have its secrets."""
    validate = pytest.importorskip("kubernetes_validate")
    text = (CONTAINERS / "kubernetes" / "pipeline.yaml").read_text(encoding="utf-8")
    parts: dict[str, Any] = {part["kind"]: part for part in yaml.safe_load_all(text)}
    for part in parts.values():
        validate.validate(part, validate.latest_version(), strict=True)
    pod = parts["StatefulSet"]["spec"]["template"]["spec"]
    (driver,) = pod["containers"]
    settings = dict(each.removeprefix("--conf=").split("=", 1) for each in driver["args"] if each.startswith("--conf="))
    assert settings["spark.driver.host"].partition(".")[0] == parts["Service"]["metadata"]["name"]
    ports = {int(settings[name]) for name in ("spark.driver.port", "spark.driver.blockManager.port")}
    assert ports == {port["port"] for port in parts["Service"]["spec"]["ports"]}
    assert parts["Service"]["spec"]["selector"] == parts["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert pod["serviceAccountName"] == parts["RoleBinding"]["subjects"][0]["name"]

    for variable in driver["env"]:
        secret = variable["valueFrom"].get("secretKeyRef")
        if secret:
            told = settings[f"spark.kubernetes.executor.secretKeyRef.{variable['name']}"]
            assert told == f"{secret['name']}:{secret['key']}"
    assert find_spec(settings["spark.python.daemon.module"]) is not None


def test_the_unit_runs_our_command() -> None:
    unit = (CONTAINERS / "xabridge-run.service").read_text(encoding="utf-8")
    (command,) = re.findall(r"^ExecStart=/usr/bin/env xabridge (.*)$", unit, re.MULTILINE)
    (patience,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert parsed(command.split()).shutdown_s < int(patience)


def test_the_guide_has_every_flag() -> None:
    text = (ROOT / "docs" / "app.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `(--[a-z-]+)", text, re.MULTILINE))
    assert told == set(re.findall(r"(--[a-z-]+)", help_of_run())) - {"--help"}


def help_of_run() -> str:
    subparsers: Any = make_parser("run")._subparsers
    return str(subparsers._group_actions[0].choices["run"].format_usage())
