"""``python -m clonos.local PLAN``: the supervisor in the background; PLAN is JSON."""

import signal
import sys
import threading
from types import FrameType

from clonos.errors import ClonosError
from clonos.local.plan import Plan
from clonos.local.stack import Stack


def main() -> int:
    """Run until SIGTERM; the exit code."""
    stop = threading.Event()

    def leave(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, leave)

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    try:
        Stack(Plan.model_validate_json(sys.argv[1]), say, stop).run()
    except ClonosError as error:
        say(f"{error.slug}: {error}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
