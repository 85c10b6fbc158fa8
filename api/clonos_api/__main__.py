"""``python -m clonos_api``."""

import sys

from clonos_api.serve import main

sys.exit(main())
