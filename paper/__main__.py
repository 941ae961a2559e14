"""`python -m paper`: run the study."""

import sys

from eattn.cli import run_app
from paper.commands import app

sys.exit(run_app(app, "python -m paper"))
