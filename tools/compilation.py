"""Compiles the hot modules to C with mypyc: the build hook of the compiled wheel, and what `make compiled` runs.

    XABRIDGE_COMPILE=1 pip wheel .          a wheel for this interpreter and platform, with the compiled modules in it
    python -m tools.compilation build       compiles in place: the checkout runs on the compiled modules
    python -m tools.compilation build --quick   without optimisation, which takes less than half of the processor time
    python -m tools.compilation remove      removes them: the checkout runs on the sources

Without XABRIDGE_COMPILE=1 a wheel is pure and needs no compiler. The compiled modules are made from the same sources:
nothing differs but the time. The compiled wheel has the sources, too, for tracebacks and for type checkers. Which
modules are compiled stands in pyproject.toml, `[tool.hatch.build.targets.wheel.hooks.custom]`.

1. mypyc translates the modules to C, one file per module, into `.compiled/`.
2. The C compiler makes an object of each file, as many at once as there are processors. An object is made again if and
   only if its C file, a header, the options or a version differ from those that it was made with.
3. All of them become one library, `xabridge__mypyc`. Each module has a small library of its own beside its source,
   which only calls the large one. Python imports it in place of the source.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import sys
import sysconfig
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[1]
LIBRARY: Final = "xabridge__mypyc"
SUFFIX: Final = sysconfig.get_config_var("EXT_SUFFIX")
_OPTIONS: Final = ("--config-file=", "--follow-imports=silent", "--ignore-missing-imports", "--no-warn-no-return")
"""mypy's options for the translation. What the types have to satisfy is what `make check` says."""


def wanted() -> bool:
    """Whether a wheel is to be compiled."""
    return os.environ.get("XABRIDGE_COMPILE", "") not in {"", "0"}


def sources(root: Path = ROOT) -> list[Path]:
    """The sources of the modules that are compiled, relative to the checkout `root`."""
    with (root / "pyproject.toml").open("rb") as file:
        settings = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    patterns, pure = settings["modules"], settings["pure"]
    found = {path.relative_to(root) for pattern in patterns for path in root.glob(pattern)}
    found -= {path.relative_to(root) for pattern in pure for path in root.glob(pattern)}
    return sorted(path for path in found if path.name != "__init__.py")


def libraries(root: Path = ROOT) -> list[Path]:
    """What compilation makes in the folder `root`: the large library, and one for each compiled module."""
    return [root / f"{LIBRARY}{SUFFIX}", *(root / path.with_suffix(SUFFIX) for path in sources())]


def is_compiled(root: Path = ROOT) -> bool:
    """Whether a checkout runs on compiled modules."""
    return any(path.exists() for path in libraries(root))


def stale(root: Path = ROOT) -> list[str]:
    """The modules of a checkout whose library is missing or older than the source, while others are compiled."""
    if not is_compiled(root):
        return []
    library = libraries(root)[0]
    made_s = library.stat().st_mtime if library.exists() else 0
    return [
        str(path)
        for path in sources(root)
        if not (root / path.with_suffix(SUFFIX)).exists() or (root / path).stat().st_mtime > made_s
    ]


def build(root: Path, into: Path, *, quick: bool = False) -> list[Path]:
    """Compiles the modules, and puts the libraries into the folder `into`: their paths, relative to it. With `quick`
    the C compiler optimises nothing."""
    folder = root / ".compiled" / sys.implementation.cache_tag
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder), contextlib.chdir(root):
        return _build(folder.relative_to(root), into, "0" if quick else "2")


def _build(folder: Path, into: Path, level: str) -> list[Path]:
    import setuptools  # noqa: PLC0415 — only who compiles needs it; before mypyc, which asks whether it is loaded
    from mypy.version import __version__  # noqa: PLC0415
    from mypyc.build import mypycify  # noqa: PLC0415
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415

    extensions = mypycify(
        [*_OPTIONS, *map(str, sources(Path.cwd()))],
        opt_level=level,
        debug_level="0",
        multi_file=True,
        target_dir=str(folder),
        group_name="xabridge",
    )

    class Build(build_ext):
        """The same as setuptools does, with all files at once, and without those that are made already."""

        def build_extensions(self) -> None:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = [[pool.submit(self._object, each, source) for source in each.sources] for each in extensions]
                linked = [
                    pool.submit(self._link, each, [future.result() for future in futures])
                    for each, futures in zip(extensions, made, strict=True)
                ]
                for future in linked:
                    future.result()

        def _object(self, extension: Any, source: str) -> str:
            made_with = (__version__, sys.version, extension.extra_compile_args, self.compiler.compiler_so)
            digest = hashlib.sha256(repr(made_with).encode())
            headers = [path for path in extension.depends if path.endswith(".h")]
            for path in (source, *headers):
                digest.update(Path(path).read_bytes())

            (target,) = self.compiler.object_filenames([source], output_dir=self.build_temp)
            stamp = Path(target + ".sha256")
            if not (Path(target).exists() and stamp.exists() and stamp.read_text() == digest.hexdigest()):
                stamp.unlink(missing_ok=True)
                self.compiler.compile(
                    [source],
                    output_dir=self.build_temp,
                    include_dirs=extension.include_dirs,
                    extra_postargs=extension.extra_compile_args,
                )
                stamp.write_text(digest.hexdigest())
            return str(target)

        def _link(self, extension: Any, objects: list[str]) -> None:
            target = Path(self.get_ext_fullpath(extension.name))
            target.parent.mkdir(parents=True, exist_ok=True)
            fresh = target.with_name(f".{target.name}")  # a process may have the old one loaded
            self.compiler.link_shared_object(objects, str(fresh), libraries=self.get_libraries(extension))
            fresh.replace(target)

    command = Build(setuptools.Distribution({"ext_modules": extensions}))
    command.build_temp = str(folder / "objects")
    command.build_lib = str(into)
    command.ensure_finalized()
    command.run()
    return [Path(command.get_ext_filename(each.name)) for each in extensions]


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Alone with a folder."""
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class CompilationHook(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel, where XABRIDGE_COMPILE asks for them."""

    def dependencies(self) -> list[str]:
        if not wanted() or self.target_name != "wheel":
            return []
        return list(self.config["requires"])

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not wanted() or version == "editable":
            return
        root = Path(self.root)
        into = root / ".compiled" / sys.implementation.cache_tag / "wheel"
        for path in build(root, into):
            build_data["force_include"][str(into / path)] = str(path)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def remove(root: Path = ROOT) -> None:
    """Removes every compiled module from a checkout, also those that are not in the list any more."""
    for folder in (root, *(path for path in root.iterdir() if (path / "py.typed").exists())):
        for path in folder.glob("*.so") if folder == root else folder.rglob("*.so"):
            path.unlink()


def main() -> None:
    """Compiles the checkout in place, or makes it pure again."""
    parser = argparse.ArgumentParser(prog="python -m tools.compilation", description="Compile the hot modules.")
    parser.add_argument("what", choices=("build", "remove", "list"))
    parser.add_argument("--quick", action="store_true", help="without optimisation")
    asked = parser.parse_args()
    if asked.what == "build":
        remove()
        build(ROOT, ROOT, quick=asked.quick)
    elif asked.what == "remove":
        remove()
    else:
        print(*sources(), sep="\n")


if __name__ == "__main__":
    main()
