"""The ``clonos`` command.

One module per command group: `job`, `checkpoint`, `recovery`, `host`, `access`, `events`, … use a control plane through
`clonos.client`; `run`, `lint`, `demo`, `doctor`, `local`, `kafka` and `causal_log` work on this machine. Shared parts:

- `app` builds the command tree and is the only mapping from errors to exit codes (`ClonosError.exit_code`).
- `options` defines the options of all commands and connects to the control plane.
- `show` prints REST bodies as tables, JSON lines or names; `picture` draws one job, `live` a local run.

Rules:

- A command imports its dependencies inside its function, so ``clonos --help`` loads neither PySpark nor HTTP.
- Results go to stdout, messages and errors to stderr. JSON output has the fields of the REST API (docs/cli-json.md).
- A command raises a `ClonosError` instead of calling `sys.exit`. Exit code 1 without an error means "has findings".

This is the top tier: nothing else in `clonos` may import it.
"""

from clonos.cli.app import main

__all__ = ["main"]
