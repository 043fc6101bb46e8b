"""`python -m xabridge`: the command `xabridge`, where no console script is installed."""

import sys

from xabridge.cli.main import main

sys.exit(main())
