"""Makes `python -m bench NAME` a command: see `bench.command`."""

import sys

from bench.command import main
from bench.machine import run_with_the_systems_interpreter

if __name__ == "__main__":
    run_with_the_systems_interpreter()
    sys.exit(main())
