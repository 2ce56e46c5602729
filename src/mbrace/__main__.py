"""`python -m mbrace`."""

import sys

from mbrace.cli import main

if __name__ == "__main__":
    sys.exit(main())
