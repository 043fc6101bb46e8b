"""`xabridge pipeline package` makes the files that spark-submit takes to executors: an archive of the packages of this
environment, and a zip file of the user's modules. docs/pipeline-cluster.md is its manual.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xa.printable import escaped
from xabridge.exit_codes import Exit
from xabridge.pipeline.archive import SUFFIXES, tag, write_modules, write_packages
from xabridge.pipeline.core import PipelineError
from xabridge.text import several

if TYPE_CHECKING:
    import argparse

SUMMARY: Final = "pack this environment for executors, for spark-submit"
FOLDER: Final = "packages"
"""Where an executor finds the archive, unpacked."""
DAEMON: Final = "xabridge.pipeline.spark.worker_daemon"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `xabridge pipeline package`."""
    parser.add_argument(
        "modules", nargs="*", type=Path, metavar="MODULE", help="your own modules: files .py and folders of packages"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the archive (default: packages-TAG.tar.gz, where TAG names the Python that it is for); modules go into "
        "FILE-modules.zip",
    )
    parser.add_argument(
        "--without", action="append", default=[], metavar="NAME", help="a package that executors do not need"
    )


def run(arguments: argparse.Namespace) -> int:
    """Makes the files, and prints how to use them."""
    packages: Path = arguments.output or Path(f"{FOLDER}-{tag()}.tar.gz")
    stem = next((packages.name.removesuffix(end) for end in SUFFIXES if packages.name.endswith(end)), packages.name)
    modules = packages.with_name(f"{stem}-modules.zip")
    try:
        if arguments.modules:  # which takes a moment, and the packages minutes
            write_modules(modules, arguments.modules)
        try:
            packed = write_packages(packages, arguments.without)
        except BaseException:
            if arguments.modules:
                modules.unlink()
            raise
    except (PipelineError, OSError) as error:
        sys.stderr.write(f"xabridge pipeline package: {escaped(str(error))}\n")
        return Exit.USAGE if isinstance(error, PipelineError) else Exit.FAILED

    print(f"{several(len(packed), 'package')} for {tag()}: {escaped(str(packages))}")
    print()
    options = [f"--archives {shlex.quote(f'{packages}#{FOLDER}')}"]
    options += [f"--py-files {shlex.quote(str(modules))}"] if arguments.modules else []
    options += [f"--conf spark.executorEnv.PYTHONPATH={FOLDER}", f"--conf spark.python.daemon.module={DAEMON}"]
    print(" \\\n  ".join([f"PYSPARK_PYTHON=python{sys.version_info[0]}.{sys.version_info[1]} spark-submit", *options]))
    return Exit.DONE
