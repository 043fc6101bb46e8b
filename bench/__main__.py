"""Makes `python -m bench NAME` a command: see `bench.command`."""

import sys

from bench.command import main

if __name__ == "__main__":
    sys.exit(main())
