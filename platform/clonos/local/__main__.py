"""``python -m clonos.local PLAN``: the supervisor in the background, with the plan as JSON."""

import os
import signal
import sys
import threading

from clonos.errors import ClonosError
from clonos.local.plan import Plan
from clonos.local.stack import Stack
from clonos.signals import stop_on_signals


def main() -> int:
    """Run the supervisor of a local platform until SIGTERM."""
    os.umask(0o077)  # of all parts: other users of the machine read neither topics nor logs
    stop = threading.Event()
    stop_on_signals(stop.set, signal.SIGHUP)

    def report(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    try:
        Stack(Plan.model_validate_json(sys.argv[1]), report, stop).run()
    except ClonosError as error:
        report(f"{error.slug}: {error}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
