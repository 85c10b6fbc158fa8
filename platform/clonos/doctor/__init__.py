"""Diagnosis of this machine, Kafka and the control plane (``clonos doctor``).

`diagnose` runs independent checks: Python, Java, jars, start-up cache, ``CLONOS_HOME``, disk, Kafka, control plane,
port. Each yields `Check` results with a status:

- ``ok``: no problem.
- ``warn``: jobs run, but the finding may surprise.
- ``fail``: jobs cannot run, or not with exactly-once output.

A check that raises becomes a ``fail`` result, so it never hides the others. The checks change nothing except for one
temporary Kafka topic (``clonos.doctor.…``), which they delete.

The package uses `clonos.embedded`, `clonos.local` and `clonos.client`, and of `clonos.spark` the path of the start-up
cache. It must not import `clonos.cli`.
"""

from clonos.doctor.check import Check
from clonos.doctor.diagnosis import Diagnosis, diagnose

__all__ = ["Check", "Diagnosis", "diagnose"]
