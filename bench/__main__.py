"""`python -m bench NAME`: see `bench.command`."""

import sys

from bench.command import main

if __name__ == "__main__":
    sys.exit(main())
