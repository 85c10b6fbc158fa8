"""`clonos agent` with settings that the command line does not have: a driver that is none."""

import asyncio
import sys

from clonos.agent import Agent, AgentSettings
from clonos.cli.agent import run_until_told
from clonos.errors import ClonosError

try:
    asyncio.run(run_until_told(Agent(AgentSettings.model_validate_json(sys.argv[1]))))
except ClonosError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
