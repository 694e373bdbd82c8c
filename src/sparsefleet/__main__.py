"""`python -m sparsefleet`: the `sparsefleet` command."""

import sys

from sparsefleet.cli.main import main

sys.exit(main())
