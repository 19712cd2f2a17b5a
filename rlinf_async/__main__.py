"""`python -m rlinf_async`."""

import os
import sys

from rlinf_async.hardware.process import THREAD_VARIABLES

if __name__ == "__main__":
    # Before numpy loads: in serial mode this process computes, and must compute as a host does.
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    from rlinf_async.cli.main import main
    from rlinf_async.execution.work_thread import any_alive

    code = main(sys.argv[1:])
    if any_alive():
        # In the midst of native code a thread does not survive the end of the interpreter: it would
        # take the process down with it. Everything is written by now.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
