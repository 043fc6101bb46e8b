"""Archives for spark-submit: the packages of this Python environment, for `--archives`, and modules of the user's, for
`--py-files`.

The archive of packages has every installed distribution with its metadata, so that entry points and versions work where
it is unpacked, compiled modules included. It is for Pythons of the same version and platform, and is put on their
PYTHONPATH. It lacks what Spark brings itself (PySpark, Py4J) and what only installs others (pip, setuptools). The same
packages make the same octets, on whatever day and in whatever folder.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import sys
import sysconfig
import tarfile
import zipfile
from contextlib import ExitStack
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xabridge.pipeline.core import PipelineError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from importlib.metadata import Distribution

LEFT_OUT: Final = frozenset({"pyspark", "pyspark-client", "py4j", "pip", "setuptools", "wheel"})
SUFFIXES: Final = (".tar.gz", ".tgz", ".tar")
_TIME: Final = 315532800
"""The time of every file: 1980, before which zip files have no times."""
_COMPILED: Final = (".so", ".pyd", ".dylib")


def tag() -> str:
    """What kind of Python an archive is for: cp311-linux_x86_64."""
    platform = re.sub("[^A-Za-z0-9]+", "_", sysconfig.get_platform())
    return f"{sys.implementation.cache_tag.replace('cpython-', 'cp')}-{platform}"


def write_packages(
    path: Path, without: Collection[str] = (), found: Iterable[Distribution] | None = None
) -> list[tuple[str, str]]:
    """Writes the archive of packages, of `found` or of everything that is installed here. Returns the names and
    versions of the distributions. PipelineError: one of them can't be packed, or `without` names one that is not
    there."""
    if not path.name.endswith(SUFFIXES):
        raise PipelineError(f"{path.name}: Spark unpacks {', '.join(SUFFIXES)}: give the archive such a name")
    chosen = _chosen(distributions() if found is None else found, without)
    files: dict[str, Path | bytes] = {}
    for each in chosen.values():
        files |= _files(each)
    part = path.with_name(f"{path.name}.part")

    with ExitStack() as stack:
        target = stack.enter_context(part.open("wb"))
        if path.name.endswith(".tar"):
            archive = stack.enter_context(tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT))
        else:
            packed = stack.enter_context(gzip.GzipFile("", "wb", fileobj=target, mtime=0))
            archive = stack.enter_context(tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT))
        for name, content in sorted(files.items()):
            _add(archive, name, content)
    part.replace(path)
    return sorted((name, each.version) for name, each in chosen.items())


def _chosen(found: Iterable[Distribution], without: Collection[str]) -> dict[str, Distribution]:
    """The distributions to pack, by their names. The first one of a name is the one that Python imports."""
    chosen: dict[str, Distribution] = {}
    for each in found:
        chosen.setdefault(_normal(each.metadata["Name"]), each)
    unknown = [name for name in without if _normal(name) not in chosen]
    if unknown:
        raise PipelineError(f"--without {unknown[0]}: there is no such package in this environment")
    for name in {*LEFT_OUT, *map(_normal, without)}:
        chosen.pop(name, None)
    return chosen


def _normal(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def _files(each: Distribution) -> Iterator[tuple[str, Path | bytes]]:
    """The files of a distribution, by their names in the archive."""
    name = each.metadata["Name"]
    source = json.loads(each.read_text("direct_url.json") or "{}")
    if source.get("dir_info", {}).get("editable"):
        raise PipelineError(
            f"{name} is installed in editable mode, so its files are not in this environment. Install it as others are "
            f"(pip install {source['url'].removeprefix('file://')}), or leave it out (--without {name}) and name its "
            "modules instead, if none of them is compiled"
        )
    if each.files is None:
        raise PipelineError(
            f"{name} has no list of its files, because it was not installed by pip. Make the archive in a virtual "
            "environment of its own, or leave it out (--without)"
        )

    kept: set[str] = set()
    record = ""
    for file in each.files:
        where = file.as_posix()
        path = Path(str(each.locate_file(file)))
        if ".." in file.parts or file.is_absolute() or "__pycache__" in file.parts or not path.is_file():
            continue  # scripts, and what Python makes itself
        if where.endswith(".pth") and "/" not in where:
            raise PipelineError(
                f"{name} needs {where}, which Python does not read in folders of PYTHONPATH: leave it out (--without)"
            )
        if where.endswith(".dist-info/direct_url.json"):
            continue  # names a folder of this machine
        kept.add(where)
        if where.endswith(".dist-info/RECORD"):
            record = where
        else:
            yield where, path

    if record:
        lines = csv.reader(io.StringIO(each.read_text("RECORD") or ""))
        rows = sorted(line for line in lines if line and line[0] in kept)
        written = io.StringIO()
        csv.writer(written, lineterminator="\n").writerows(rows)
        yield record, written.getvalue().encode()


def _add(archive: tarfile.TarFile, name: str, content: Path | bytes) -> None:
    octets = content if isinstance(content, bytes) else content.read_bytes()
    info = tarfile.TarInfo(name)
    info.size, info.mtime = len(octets), _TIME
    runs = isinstance(content, Path) and content.stat().st_mode & 0o100
    info.mode = 0o755 if runs else 0o644
    archive.addfile(info, io.BytesIO(octets))


def write_modules(path: Path, modules: Sequence[Path]) -> list[str]:
    """Writes a zip file of modules, each a file or the folder of a package. Returns the names in it. PipelineError:
    there is no such module, or it is compiled, which Python can't import from a zip file."""
    files: dict[str, Path] = {}
    for module in modules:
        if module.is_file() and module.suffix == ".py":
            files[module.name] = module
        elif (module / "__init__.py").is_file():
            for file in module.rglob("*"):
                if file.suffix in _COMPILED:
                    raise PipelineError(
                        f"{file} is compiled, and Python can't import such a module from a zip file: install its "
                        "package into this environment, so that it is in the archive of packages"
                    )
                if file.is_file() and "__pycache__" not in file.parts:
                    files[Path(module.name, file.relative_to(module)).as_posix()] = file
        else:
            raise PipelineError(f"{module} is neither a module (a file .py) nor a package (a folder with __init__.py)")

    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in sorted(files.items()):
            info = zipfile.ZipInfo(name)  # of 1980
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(info, file.read_bytes())
    return sorted(files)
