"""The command `python -m sparsefleet.distributed.launch`."""

import sys

from sparsefleet.fluid.paddle.distributed.launch import main

if __name__ == "__main__":
    sys.exit(main())
