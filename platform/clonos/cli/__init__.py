"""The ``clonos`` command.

Modules hold related command groups: `job`, `checkpoint`, `job_history`, `host`, `access`, `logs`, … use a control plane
through `clonos.client`; `run`, `lint`, `local`, `kafka` and `causal_log` work on this machine. Shared parts:

- `app` builds the command tree and is the only mapping from errors to exit codes (`ClonosError.exit_code`).
- `remote` connects a command to the control plane, and adds the options for this, for output and for waiting.
- `options` defines the other options that commands share; `progress` waits for operations and jobs.
- `show` prints REST bodies as tables, JSON lines or names; `picture` draws one job, `live` a local run.

Rules:

- A command imports its dependencies inside its function, so ``clonos --help`` loads neither PySpark nor HTTP.
- Results go to stdout, messages and errors to stderr. JSON output has the fields of the REST API (docs/cli-json.md).
- A command raises a `ClonosError` instead of calling `sys.exit`. Exit code 1 without an error means "has findings".

This is the top tier: nothing else in `clonos` may import it.
"""

from clonos.cli.app import main

__all__ = ["main"]
