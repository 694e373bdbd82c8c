"""`python -m sparsefleet.as_paddle train.py`; see `sparsefleet.fluid.paddle.as_paddle`."""

import sys

from sparsefleet.fluid.paddle.as_paddle import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
