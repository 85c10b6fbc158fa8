"""``python -m clonos_api.store``: works on the database in `ApiSettings`, as a child process of the command line.

- ``upgrade [REVISION]`` migrates its tables; ``current`` prints their revision (`clonos db`);
- ``backup DIR`` copies it; ``restore DIR [keep-tokens]`` fills an empty one from a backup (`clonos backup`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from alembic.util import CommandError

from clonos.errors import ClonosError, SpecError
from clonos_api.settings import ApiSettings
from clonos_api.store import backup, restore
from clonos_api.store.db import schema


def main(arguments: Sequence[str]) -> int:
    """Run a command and return the exit code.

    ``current`` returns 1 if a newer revision exists.
    """
    try:
        return _run(*arguments)
    except ClonosError as error:
        sys.stderr.write(f"{error.slug}: {error}\n")
        return error.exit_code


def _run(command: str, *arguments: str) -> int:
    settings = ApiSettings()
    match command, arguments:
        case "upgrade", ([] | [_]) as revision:
            return _upgrade(settings, *revision)
        case "current", []:
            return _current(settings)
        case "backup", [directory]:
            return _backup(settings, Path(directory))
        case "restore", [directory, *more] if more in ([], ["keep-tokens"]):
            return _restore(settings, Path(directory), keep_tokens=bool(more))
    raise SpecError(f"Unknown command {command!r}.", hint="use upgrade, current, backup or restore.")


def _upgrade(settings: ApiSettings, revision: str = "head") -> int:
    if settings.database_url is None:
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        schema.upgrade(settings.database, revision)
    except CommandError as error:
        raise SpecError(
            f"{error}.", kept="nothing was changed.", hint="`clonos db current` shows valid revisions."
        ) from error
    _current(settings)  # prints it, also of an older revision
    return 0


def _current(settings: ApiSettings) -> int:
    if settings.database_url is None:
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    has, newest = schema.current(settings.database), schema.newest()
    sys.stdout.write(f"The database has revision {has or 'none'}, the newest is {newest}.\n")
    return int(has != newest)


def _backup(settings: ApiSettings, directory: Path) -> int:
    manifest = backup.create(settings.database, directory)
    sys.stdout.write(
        f"{directory} has {sum(manifest.rows.values())} rows of the {manifest.source} database, with "
        f"{len(manifest.jobs)} jobs and the code of all versions, as of {manifest.created_at:%Y-%m-%d %H:%M:%S} UTC.\n"
        f"It has neither checkpoints nor the {len(manifest.savepoints)} savepoints that {backup.MANIFEST_FILE} names.\n"
    )
    return 0


def _restore(settings: ApiSettings, directory: Path, *, keep_tokens: bool) -> int:
    done = restore.restore(directory, settings.database, token_file=settings.admin_token_file, keep_tokens=keep_tokens)
    lines = [
        f"Restored the backup of {done.manifest.created_at:%Y-%m-%d %H:%M:%S} UTC.",
        f"Jobs that were set to run, and are stopped now: {', '.join(done.ran) or 'none'}.",
        "Start them once the control plane of the backup does not run any more: clonos job start JOB.",
        f"Tokens: {done.tokens} valid.",
    ]
    if done.token_file is not None:
        lines.append(f"The token of an admin is in {done.token_file}. Create new ones for users and agents.")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
