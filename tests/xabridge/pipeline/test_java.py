"""These tests check that an installed Java is found, and that a user without one, or with one that is too old, gets a
message with what to do.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from xabridge.pipeline import PipelineError, java


def runtime(folder: Path, version: str) -> Path:
    """A folder that looks like a Java runtime."""
    binary = folder / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-16' >&2\n")
    binary.chmod(0o755)
    return folder


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel with a runtime is not installed."""
    monkeypatch.setattr(java, "WHEEL", "no_such_package")


@pytest.mark.usefixtures("no_wheel")
def test_java_home_comes_before_path(tmp_path: Path) -> None:
    home, other = runtime(tmp_path / "home", "21.0.1"), runtime(tmp_path / "other", "17.0.9")
    assert java.find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")}) == home
    environment = {"PATH": str(other / "bin")}
    assert java.use_java(environment) == other
    assert environment["JAVA_HOME"] == str(other)


@pytest.mark.usefixtures("no_wheel")
def test_what_is_missing_or_old_is_told_with_what_to_install(tmp_path: Path) -> None:
    home = runtime(tmp_path / "home", "1.8.0_392")
    for environment, told in (
        ({"PATH": str(tmp_path)}, r"there is none here: install a Java runtime, 17 or newer .*pipeline-java"),
        ({"PATH": str(home / "bin")}, "this is Java 8, but Spark needs 17 or newer"),
        ({"JAVA_HOME": str(home)}, r"JAVA_HOME=.*this is Java 8"),
        ({"JAVA_HOME": str(tmp_path)}, "there is no bin/java in it"),
    ):
        with pytest.raises(PipelineError, match=told):
            java.find_java(environment)


@pytest.mark.slow
def test_the_wheel_is_there_where_the_system_has_none_or_an_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    old = runtime(tmp_path / "old", "1.8.0_392")
    for path in (tmp_path, old / "bin"):
        home = java.find_java({"PATH": str(path)})
        told = subprocess.run(
            [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert told.returncode == 0, told.stderr
        assert 'version "21' in told.stderr


def test_without_pyspark_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: None if name == "pyspark" else object())
    with pytest.raises(PipelineError, match=r"pyspark: not installed; pip install .*\[pipeline\]'"):
        java.check_spark()
