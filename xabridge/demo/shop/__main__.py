"""`python -m xabridge.demo.shop` is a worker that reports its events to the process that started it."""

import sys

from xabridge.demo.shop.worker import main

if __name__ == "__main__":
    sys.exit(main())
