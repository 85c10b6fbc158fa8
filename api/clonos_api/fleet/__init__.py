"""The state of all jobs at one moment: the board of the dashboard's overview and of ``GET /status``.

- `clonos_api.fleet.lines`: what a board contains.
- `clonos_api.fleet.facts`: reads the rows of the store from which a board is computed.
- `clonos_api.fleet.stalls`: which jobs should publish and do not, and why.
- `clonos_api.fleet.forecasts`: what would happen if a job's driver failed now, with estimates.
- `clonos_api.fleet.strip`: the recoveries of the last 24 hours.
- `clonos_api.fleet.health`: the health of a job, and the reasons.
- `clonos_api.fleet.lead`: what a job does now, as a clause.
- `clonos_api.fleet.board`: caches the newest board for all viewers of a replica.

A job is healthy only while its output arrives: no setting makes it so. The package reads the store and never writes. It
must not import routes, the dashboard or the reconciler.
"""

from clonos_api.fleet.board import Boards
from clonos_api.fleet.lines import Board, Dependencies, Forecast, Head, Health, Last, Line, Seat, Stall, Strip

__all__ = ["Board", "Boards", "Dependencies", "Forecast", "Head", "Health", "Last", "Line", "Seat", "Stall", "Strip"]
