"""``python -m clonos_api.store``: upgrades or checks the database, as a child process of `clonos db`.

``upgrade [REVISION]`` migrates the tables of the database in `ApiSettings`; ``current`` prints their revision.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from alembic.util import CommandError

from clonos.errors import ClonosError, SpecError
from clonos_api.settings import ApiSettings
from clonos_api.store.db import schema


def main(arguments: Sequence[str]) -> int:
    """Run the command ``upgrade`` or ``current`` and return the exit code.

    ``current`` returns 1 if a newer revision exists.
    """
    try:
        return _run(*arguments)
    except ClonosError as error:
        sys.stderr.write(f"{error.slug}: {error}\n")
        return error.exit_code


def _run(command: str, revision: str = "head") -> int:
    settings = ApiSettings()
    if settings.database_url is None:
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    if command == "upgrade":
        try:
            schema.upgrade(settings.database, revision)
        except CommandError as error:
            raise SpecError(
                f"{error}.", kept="nothing was changed.", hint="`clonos db current` shows valid revisions."
            ) from error
    elif command != "current":
        raise SpecError(f"Unknown command {command!r}.", hint="use upgrade or current.")
    has, newest = schema.current(settings.database), schema.newest()
    sys.stdout.write(f"The database has revision {has or 'none'}, the newest is {newest}.\n")
    return int(command == "current" and has != newest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
