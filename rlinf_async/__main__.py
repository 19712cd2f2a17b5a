"""`python -m rlinf_async`."""

import os
import sys

from rlinf_async.hardware.process import THREAD_VARIABLES

if __name__ == "__main__":
    # Before numpy loads: in serial mode this process computes, and must compute as a host does.
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    from rlinf_async.cli.main import main

    sys.exit(main(sys.argv[1:]))
