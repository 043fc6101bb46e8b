"""Builds, checks and tries what a release would upload: `python -m bench.release` (`make release-dry-run`).

It tags nothing and uploads nothing. docs/releasing.md says what a person does before and after it.

1. The changelog's newest section is `Unreleased` or the version of pyproject.toml. With `--tagged`, it is the version,
   and nothing in the work tree differs from the last commit.
2. hatchling builds the source distribution and the wheel into `dist/`.
3. Their metadata is valid, and names this version. The wheel has the licence, `py.typed` and the guides, and no file of
   the tests; the source distribution has everything from which the wheel can be built again.
4. In an empty environment, the locked dependencies and then the wheel are installed; `xabridge --version` prints the
   version, and `xabridge --help` works.
"""

from __future__ import annotations

import argparse
import email.parser
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from packaging.metadata import Metadata

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).parents[1]
_SECTION: Final = re.compile(r"^## (?:\[(?P<version>[^]]+)\]|(?P<plain>\S+))", re.MULTILINE)
_IN_THE_WHEEL: Final = ("/py.typed", ".dist-info/licenses/LICENSE", "share/doc/xabridge/start.md")
_IN_THE_SOURCES: Final = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "tests/conftest.py",
    "tools/compilation.py",
)


class Defect(Exception):
    """Why this can't be released."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds and tries the release."""
    parser = argparse.ArgumentParser(prog="python -m bench.release", description="Build and try a release.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the two files go (default: dist)")
    parser.add_argument("--tagged", action="store_true", help="check also what a tag needs")
    parser.add_argument("--no-install", action="store_true", help="don't install the wheel in an empty environment")
    options = parser.parse_args(arguments)

    try:
        version = project_version()
        check_changelog((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version, tagged=options.tagged)
        if options.tagged:
            check_clean()

        sources, wheel = build(options.out)
        check_sources(sources, version)
        check_wheel(wheel, version)
        if not options.no_install:
            try_wheel(wheel, version)
    except Defect as defect:
        print(f"not releasable: {defect}", file=sys.stderr)
        return 1

    print(f"releasable: {sources}, {wheel}; the tag would be v{version}")
    return 0


def project_version() -> str:
    """The version of pyproject.toml."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return str(version)


def check_changelog(text: str, version: str, *, tagged: bool) -> None:
    """The newest section is of this version, or, before a tag, of what is not released yet."""
    found = _SECTION.search(text)
    newest = (found["version"] or found["plain"]) if found else "nothing"
    allowed = {version} if tagged else {version, "Unreleased"}
    if newest not in allowed:
        raise Defect(f"CHANGELOG.md begins with {newest}, and should begin with {' or '.join(sorted(allowed))}")


def check_clean() -> None:
    """The work tree is the last commit."""
    if changed := _run("git", "status", "--porcelain").strip():
        raise Defect(f"the work tree differs from the last commit:\n{changed}")


def build(folder: Path) -> tuple[Path, Path]:
    """Builds both distributions anew, and nothing else is left in `folder`."""
    if folder.exists():
        shutil.rmtree(folder)
    _run(sys.executable, "-m", "hatchling", "build", "-d", str(folder))
    (sources,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    return sources, wheel


def check_sources(path: Path, version: str) -> None:
    """The source distribution can be built from, and names this version."""
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
        content = archive.extractfile(f"xabridge-{version}/PKG-INFO")
        if content is None:
            raise Defect(f"{path.name} has no PKG-INFO")
        _check_metadata(content.read(), version)
    if missing := [name for name in _IN_THE_SOURCES if name not in names]:
        raise Defect(f"{path.name} lacks {', '.join(missing)}")


def check_wheel(path: Path, version: str) -> None:
    """The wheel has what users need, nothing of the tests, and names this version."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        _check_metadata(archive.read(f"xabridge-{version}.dist-info/METADATA"), version)
    if missing := [end for end in _IN_THE_WHEEL if not any(name.endswith(end) for name in names)]:
        raise Defect(f"{path.name} lacks {', '.join(missing)}")
    if strange := [name for name in names if name.startswith(("tests/", "site/", "theme/"))]:
        raise Defect(f"{path.name} has what is not for users: {', '.join(strange[:5])}")


def try_wheel(wheel: Path, version: str) -> None:
    """Installs the wheel where nothing else is, and asks it who it is."""
    with tempfile.TemporaryDirectory() as scratch:
        venv.create(scratch, with_pip=True)
        bin_folder = Path(scratch, "bin")
        pip = (str(bin_folder / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install")
        _run(*pip, "--require-hashes", "-r", str(ROOT / "containers" / "requirements.lock"))
        _run(*pip, "--no-deps", str(wheel.resolve()))

        answer = _run(str(bin_folder / "xabridge"), "--version", cwd=Path(scratch)).strip()
        if answer != f"xabridge {version}":
            raise Defect(f"`xabridge --version` answers {answer!r}")
        _run(str(bin_folder / "xabridge"), "--help", cwd=Path(scratch))


def _check_metadata(content: bytes, version: str) -> None:
    metadata = Metadata.from_email(content, validate=True)
    if str(metadata.version) != version:
        raise Defect(f"the metadata names version {metadata.version}, pyproject.toml {version}")
    if not email.parser.BytesParser().parsebytes(content).get_payload():
        raise Defect("the metadata has no description")


def _run(*command: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)  # noqa: S603 — our own commands
    if done.returncode != 0:
        raise Defect(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
