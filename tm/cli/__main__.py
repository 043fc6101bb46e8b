"""`python -m tm.cli`: the command `xabridge`, where no console script is installed."""

import sys

from tm.cli.main import main

sys.exit(main())
