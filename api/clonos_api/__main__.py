"""``python -m clonos_api``: runs one replica of the control plane."""

import sys

from clonos_api.serve import main

sys.exit(main())
