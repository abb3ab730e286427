"""`python -m holdfast.cli` is the same as `holdfast`."""

import sys

from holdfast_queue.command import main

if __name__ == "__main__":
    sys.exit(main())
