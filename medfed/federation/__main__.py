"""A coordinator's side: prepare a federation of hospitals, and run it. (`python -m medfed.federation`)"""

import sys

from medfed.deployment import main

if __name__ == "__main__":
    sys.exit(main())
