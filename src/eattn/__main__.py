"""Entry point of `python -m eattn`, which is the same as `eattn`."""

import sys

from eattn.cli import main

sys.exit(main())
