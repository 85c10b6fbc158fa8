"""What the demo has to know of an example."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clonos.demo.evidence import Evidence
from clonos.demo.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Scene:
    """One example: its folder below ``examples`` holds ``job.py``, ``job.yaml`` and ``generate.py``.

    Attributes:
        name: The folder, and the job.
        source: The job parameter that names the input topic.
        outputs: Those that name output topics. The first is watched: each of its records names its source.
        check: The checker.
        server: A script in the folder that answers over HTTP; its address is the parameter ``server``. Empty: none.
        plain: A module that does the same on plain Spark. Empty: none.
    """

    name: str
    source: str
    outputs: tuple[str, ...]
    check: Callable[[Evidence], Verdict]
    server: str = ""
    plain: str = ""

    @property
    def topics(self) -> tuple[str, ...]:
        """All parameters that name topics."""
        return (self.source, *self.outputs)
