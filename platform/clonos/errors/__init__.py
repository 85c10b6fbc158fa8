"""Typed errors: every error that Clonos raises on purpose, as one tree of classes.

Each error states what happened, what was kept safe, and what to do next. The header of a class has what programs
read, its body what people read:

- `exit_code` is the exit code of the process. Its range names the family: 10-29 and 120-124 the user's to fix, 30-49
  and 100-114 the environment, 50-69 consistency, 70-79 and 115-119 the run, 80-89 the control plane's state, 90-99
  rejected requests. 0 is success, 1 an unexpected error, 2 an invalid command line.
- `slug` is the stable last part of the problem type in the REST API, and the `error` field of events. It is the name
  of the class in kebab case, unless the header has another one.
- `retry` states whether a new attempt can succeed without a change. The restart policy reads it.
- `outage` states that a system on which the job depends is away. The driver waits for it; the restart policy does not
  count that.

Each family has a module; only these define exit codes and slugs. The package imports nothing else of Clonos.

The first sentence of a class docstring is "what happened" in `docs/errors.md`, and `hint_default` is "what to do".
``python -m clonos.errors`` prints the generated part of that page; a test compares the two.
"""

from __future__ import annotations

from clonos.errors.base import ClonosError as ClonosError
from clonos.errors.catalogue import BY_EXIT_CODE as BY_EXIT_CODE
from clonos.errors.catalogue import BY_SLUG as BY_SLUG
from clonos.errors.catalogue import CLASSES as CLASSES
from clonos.errors.catalogue import markdown as markdown
from clonos.errors.consistency import *
from clonos.errors.control_plane import *
from clonos.errors.environment import *
from clonos.errors.run import *
from clonos.errors.user import *
