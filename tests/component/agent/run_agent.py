"""`clonos agent` with settings that the command line lacks, such as the command of a fake driver."""

import asyncio
import sys

from clonos.agent import Agent, AgentSettings
from clonos.cli.control_plane import run_until_signalled
from clonos.errors import ClonosError

try:
    asyncio.run(run_until_signalled(Agent(AgentSettings.model_validate_json(sys.argv[1]))))
except ClonosError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
