"""Examples as the demo runs them: their directory, and the modules in it that the demo loads by path.

``examples/<name>`` holds ``job.py`` and ``job.yaml``, ``generate.py`` (endless input) and ``check.py`` (the checker and
an `Example` named ``EXAMPLE``). The directories are packed into the wheel beside this module.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

from clonos.errors import SpecError
from clonos_demo.evidence import Evidence
from clonos_demo.verdict import Verdict

NAMES: Final = ("wordcount", "orders", "enrich", "live")


@dataclass(frozen=True, slots=True)
class Example:
    """One example of the demo: its job, its topics and its checker."""

    name: str  # the example's directory below ``examples``, and the job's name
    source: str  # the job parameter that names the input topic
    # The job parameters that name output topics. The demo measures arrivals in the first one, whose records name their
    # source records.
    outputs: tuple[str, ...]
    check: Callable[[Evidence], Verdict]  # computes the verdict from the evidence
    # Script of an HTTP server that the job calls; the job parameter ``server`` holds its address. Empty: none.
    server: str = ""
    plain: str = ""  # module with the same job on plain Spark. Empty: none.
    live: bool = False  # whether its query is live: no epoch of it is ever in doubt
    per_second: float = 20.0  # input records per second, unless the user says another number

    @property
    def topics(self) -> tuple[str, ...]:
        """All job parameters that name topics."""
        return (self.source, *self.outputs)

    @property
    def directory(self) -> Path:
        """The example's directory."""
        return example_directory(self.name)

    def messages(self, generator: random.Random) -> Iterator[tuple[str, bytes]]:
        """Endless input from the example's ``generate.py``: key and value of each record."""
        messages: Iterator[tuple[str, bytes]] = example_module(self.name, "generate").messages(generator)
        return messages


def load_example(name: str) -> Example:
    """Load the `Example` that ``examples/<name>/check.py`` defines."""
    example: Example = example_module(name, "check").EXAMPLE
    return example


def example_directory(name: str) -> Path:
    """Path of ``examples/<name>``: in the wheel beside this module, or in the clone."""
    here = Path(__file__).resolve().parent
    for directory in (here / "examples" / name, here.parent / name):
        if (directory / "job.py").is_file():
            return directory
    raise SpecError(f"The demo's job (examples/{name}) is not here.", hint="run the demo from a clone.")


def example_module(name: str, module: str) -> ModuleType:
    """Import a Python file of an example, once.

    Args:
        name: The example.
        module: The file's name without ``.py``.
    """
    file = example_directory(name) / f"{module}.py"
    qualified = f"clonos_example_{name}_{module}"
    if qualified in sys.modules:
        return sys.modules[qualified]
    spec = importlib.util.spec_from_file_location(qualified, file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise SpecError(f"{file} is not here.", hint="run the demo from a clone.")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[qualified] = loaded  # dataclasses and msgspec resolve annotations through it
    spec.loader.exec_module(loaded)
    return loaded
