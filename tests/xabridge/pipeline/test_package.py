"""These tests make the files that spark-submit takes to executors, and run a pipeline with them on a cluster whose
Python has no xabridge.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from contextlib import closing
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

import pytest

from tests.test_wheel import PIP, add_needed, environment
from tests.xabridge.pipeline.cluster import HOME, Cluster
from tests.xabridge.pipeline.environment import BRIEF, ROOT, SparkEnvironment
from xabridge.cli import main
from xabridge.pipeline import PipelineError, archive
from xabridge.pipeline.archive import tag, write_modules, write_packages

APPLICATION = """
import json, sys

import called
from xabridge import pipeline

source, sink, checkpoint = (json.loads(text) for text in sys.argv[1:])
spark = pipeline.session("packed")
rows = spark.readStream.format("amqp").options(**source, bad_records="called.checks:odd").load()
rows = rows.selectExpr("CAST(CAST(body AS string) AS bigint) AS id")
where = spark.sparkContext.parallelize(range(2), 2).map(lambda _: called.where()).collect()
writer = rows.writeStream.format("xa").options(**sink).option("checkpointLocation", checkpoint)
writer.trigger(availableNow=True).start().awaitTermination()
print(json.dumps(where))
spark.stop()
"""
CALLED = """
def where():
    import sys
    from importlib.metadata import entry_points, version

    import xabridge

    return sys.prefix, xabridge.__file__, version("xabridge"), len(entry_points(group="xabridge.commands"))
"""
CHECKS = """
def odd(message):
    return "odd" if int(message["body"]) % 2 else None
"""


def installed(folder: Path, name: str = "theirs", version: str = "1.0", **files: str) -> Distribution:
    """A distribution of somebody's, as pip installs it."""
    info = f"{name}-{version}.dist-info"
    contents = {
        f"{name}/__init__.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    }
    contents |= files
    for path, text in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    listed = [*contents, f"{info}/RECORD", f"../../../bin/{name}", f"{name}/__pycache__/__init__.cpython-311.pyc"]
    (folder / info / "RECORD").write_text("".join(f"{path},,\n" for path in listed))
    return PathDistribution(folder / info)


def test_the_same_packages_make_the_same_octets_anywhere(tmp_path: Path) -> None:
    made = []
    for number, url in enumerate(("file:///here", "file:///there")):
        source = json.dumps({"url": url, "dir_info": {}})
        each = installed(tmp_path / str(number), **{"theirs-1.0.dist-info/direct_url.json": source})
        os.utime(tmp_path / str(number) / "theirs" / "__init__.py", (number + 1e9, number + 1e9))
        path = tmp_path / f"{number}.tar.gz"
        assert write_packages(path, found=[each]) == [("theirs", "1.0")]
        made.append(path.read_bytes())
        path.rename(tmp_path / "packages.tar.gz")

    assert made[0] == made[1]
    with tarfile.open(tmp_path / "packages.tar.gz") as tar:
        assert tar.getnames() == [
            "theirs-1.0.dist-info/METADATA", "theirs-1.0.dist-info/RECORD", "theirs/__init__.py",
        ]  # fmt: skip
        assert {(member.mtime, member.uid, member.uname) for member in tar} == {(315532800, 0, "")}
        record = tar.extractfile("theirs-1.0.dist-info/RECORD")
        assert record is not None
        assert b"bin/theirs" not in record.read()


def test_what_can_not_be_packed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="xabridge is installed in editable mode"):
        write_packages(tmp_path / "p.tar", found=[distribution("xabridge")])
    paths = installed(tmp_path / "paths", **{"theirs.pth": "import theirs\n"})
    with pytest.raises(PipelineError, match=r"theirs needs theirs\.pth"):
        write_packages(tmp_path / "p.tar", found=[paths])
    with pytest.raises(PipelineError, match="there is no such package"):
        write_packages(tmp_path / "p.tar", without=["thiers"], found=[paths])
    (tmp_path / "paths" / "theirs-1.0.dist-info" / "RECORD").unlink()
    with pytest.raises(PipelineError, match="no list of its files"):
        write_packages(tmp_path / "p.tar", found=[paths])
    with pytest.raises(PipelineError, match="Spark unpacks"):
        write_packages(tmp_path / "p.rar", found=[])
    assert list(tmp_path.glob("p.*")) == []


def test_modules_are_packed_and_compiled_ones_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "alone.py").write_text("")
    with pytest.raises(PipelineError, match="neither a module"):
        write_modules(tmp_path / "m.zip", [tmp_path / "mine"])
    for name in ("__init__.py", "data.txt"):
        (tmp_path / "mine" / name).write_text("")
    names = write_modules(tmp_path / "m.zip", [tmp_path / "mine", tmp_path / "alone.py"])
    assert names == ["alone.py", "mine/__init__.py", "mine/data.txt"]
    assert zipfile.ZipFile(tmp_path / "m.zip").namelist() == names
    (tmp_path / "mine" / "fast.so").write_bytes(b"")
    with pytest.raises(PipelineError, match="is compiled"):
        write_modules(tmp_path / "m.zip", [tmp_path / "mine"])


def test_the_command_says_why_it_can_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks at modules before packages, and leaves nothing."""
    (tmp_path / "mine.py").write_text("")
    monkeypatch.setattr(archive, "distributions", lambda: [distribution("xabridge")])  # the others take seconds
    for modules, told in (([], "editable mode"), (["mine.py"], "editable mode"), (["none.py"], "neither a module")):
        files = [str(tmp_path / module) for module in modules]
        assert main(["pipeline", "package", "--output", str(tmp_path / "p.tar"), *files]) == 2
        assert told in capsys.readouterr().err
        assert [file.name for file in tmp_path.iterdir()] == ["mine.py"]


PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
BARE = Path(sys.base_prefix, "bin")
"""Where a Python is that has no xabridge."""


def packed(folder: Path) -> tuple[Path, list[str]]:
    """The folder of commands of an environment in `folder`, and the options that the command says when it has packed
    that and the package `called`."""
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("xabridge-*.whl")
    commands = environment(folder / "venv", wheel)
    add_needed(folder / "venv", "pipeline")
    (folder / "called").mkdir()
    (folder / "called" / "__init__.py").write_text(CALLED)

    (folder / "called" / "checks.py").write_text(CHECKS)
    packing = [str(commands / "xabridge"), "pipeline", "package", "--output", "packages.tar", "called"]
    told = subprocess.run(packing, cwd=folder, capture_output=True, text=True, check=True).stdout
    assert f"for {tag()}: packages.tar" in told
    options = shlex.split(told.partition("spark-submit")[2].replace("\\\n", ""))
    assert options[:4] == ["--archives", "packages.tar#packages", "--py-files", "packages-modules.zip"]
    looking = [str(BARE / PYTHON), "-c", "import importlib.util as u; print(u.find_spec('xabridge'))"]
    assert subprocess.run(looking, capture_output=True, text=True, check=True, cwd="/").stdout.strip() == "None"
    return commands, options


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_python_that_has_no_xabridge_runs_what_was_packed(tmp_path: Path) -> None:
    """Where both files are, as on a worker, and nothing else of ours."""
    _, options = packed(tmp_path)
    worker = tmp_path / "worker"
    shutil.unpack_archive(tmp_path / "packages.tar", worker / "packages")
    (tmp_path / "packages-modules.zip").rename(worker / "packages-modules.zip")
    (folder,) = (option.partition("PYTHONPATH=")[2] for option in options if "PYTHONPATH=" in option)
    spark = map(str, (HOME / "python" / "lib").glob("*.zip"))
    path = ":".join([f"{worker}/packages-modules.zip", folder, *spark])

    code = "import called, json, xabridge.pipeline.spark.worker_daemon; print(json.dumps(called.where()))"
    done = subprocess.run(
        [str(BARE / PYTHON), "-c", code], env={"PYTHONPATH": path}, cwd=worker, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    prefix, file, version, commands = json.loads(done.stdout)
    assert prefix == sys.base_prefix
    assert Path(worker, file).is_relative_to(worker / "packages")
    assert version == distribution("xabridge").version
    assert commands > 5


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_cluster_whose_python_has_no_xabridge(env: SparkEnvironment, java_home: Path) -> None:
    commands, options = packed(env.folder)
    (env.folder / "application.py").write_text(APPLICATION)
    env.allow_deliveries(1)
    env.send(range(60))
    surroundings = {"JAVA_HOME": str(java_home), "SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
    workers = Cluster(env.folder / "cluster", {"PATH": f"{BARE}:/usr/bin:/bin", **surroundings})
    with closing(workers) as cluster:
        settings = {**BRIEF, **cluster.settings}
        for name, value in settings.items():
            options += ["--conf", f"{name}={value}"]
        given = [json.dumps(one) for one in (env.source(), env.sink(table="rows"), env.checkpoint)]
        done = subprocess.run(
            [str(HOME / "bin" / "spark-submit"), *options, str(env.folder / "application.py"), *given],
            env=surroundings | {"PATH": f"{commands}:/usr/bin:/bin", "PYSPARK_PYTHON": PYTHON},
            cwd=env.folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]

    for prefix, file, version, commands_there in json.loads(done.stdout.splitlines()[-1]):
        assert prefix == sys.base_prefix, "the worker's own Python"
        assert str(env.folder / "cluster") in file, "from the archive"
        assert version == distribution("xabridge").version
        assert commands_there > 5
    env.settle()
    assert env.rows("SELECT count(*), min(id), max(id) FROM rows") == [(30, 0, 58)]
    assert sorted(map(int, env.received("in.dead"))) == list(range(1, 60, 2))
