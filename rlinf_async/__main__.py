"""`python -m rlinf_async`."""

import sys

from rlinf_async.cli.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
