"""The command `python -m sparsefleet.distributed.launch_ps`."""

import sys

from sparsefleet.fluid.paddle.distributed.launch_ps import main

if __name__ == "__main__":
    sys.exit(main())
