"""`python -m bench.shop`: a worker that tells its events; for who started it."""

import sys

from bench.shop.worker import main

if __name__ == "__main__":
    sys.exit(main())
