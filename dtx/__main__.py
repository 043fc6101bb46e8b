"""`python -m dtx`: the embedded broker."""

from __future__ import annotations

import sys

from dtx.broker.command import main

sys.exit(main())
