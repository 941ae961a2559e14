"""`python -m eattn` is `eattn`."""

import os
import sys

from eattn.cli import main

code = main()
if "TORCHELASTIC_RUN_ID" in os.environ:  # under torchrun
    from eattn.train.processes import leave

    leave(code)
sys.exit(code)
