"""`python -m xabridge.demo.shop`: a worker that tells its events; for who started it."""

import sys

from xabridge.demo.shop.worker import main

if __name__ == "__main__":
    sys.exit(main())
