"""Run the command line: `python -m eattn` is `eattn`."""

import sys

from eattn.cli import main

sys.exit(main())
