"""What is missing or unwell on this machine, in Kafka and in the control plane, and how to mend it."""

from clonos.doctor.check import Check
from clonos.doctor.examination import Examination, examine

__all__ = ["Check", "Examination", "examine"]
