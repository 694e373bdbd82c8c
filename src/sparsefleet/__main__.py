"""`python -m sparsefleet`: the `sparsefleet` command."""

import sys

from sparsefleet.cli import main

sys.exit(main())
