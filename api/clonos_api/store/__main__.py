"""``python -m clonos_api.store``: what `clonos db` runs.

``upgrade [REVISION]`` brings the database of `ApiSettings` to a revision, ``current`` tells which one it has.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from alembic.util import CommandError

from clonos.errors import ClonosError, SpecError
from clonos_api.settings import ApiSettings
from clonos_api.store import schema


def main(arguments: Sequence[str]) -> int:
    """Do it; the exit code. ``current`` ends with 1 if there is a newer revision."""
    try:
        return _do(*arguments)
    except ClonosError as error:
        sys.stderr.write(f"{error.slug}: {error}\n")
        return error.exit_code


def _do(what: str, revision: str = "head") -> int:
    settings = ApiSettings()
    if settings.database_url is None:
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    if what == "upgrade":
        try:
            schema.upgrade(settings.database, revision)
        except CommandError as error:
            raise SpecError(f"{error}.", kept="nothing was changed.", hint="`clonos db current` names two.") from error
    elif what != "current":
        raise SpecError(f"{what} is not known.", hint="use upgrade or current.")
    has, newest = schema.current(settings.database), schema.newest()
    sys.stdout.write(f"The database has revision {has or 'none'}, the newest is {newest}.\n")
    return int(what == "current" and has != newest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
