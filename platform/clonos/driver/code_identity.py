"""What the code of a job consists of: files, packages, parameters and settings.

Two runs with equal parts compute the same rows from the same input. Each claim holds the parts, and each plan their
hash, so that a refused replay names what has changed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from clonos.host_inputs import EXECUTOR_ENVIRONMENT, ZONE_AND_LOCALE
from clonos.jobs.code_files import short_hash
from clonos.jobs.definition import Job
from clonos.jobs.secret_refs import RESOLVED_LABEL
from clonos.telemetry.redaction import looks_secret

_HIDDEN = "hidden"
# Of the settings of a cluster, those that can change what a query computes.
_OF_QUERIES = ("spark.sql.", *(f"{EXECUTOR_ENVIRONMENT}{name}" for name in ZONE_AND_LOCALE))
# Settings that do not change what a query computes.
_HARMLESS = ("spark.clonos.", "spark.driver.", "spark.executor.memory", "spark.ui.", "spark.eventLog.", "spark.local.")


def code_parts(job: Job, conf: Mapping[str, str], cluster: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the parts of a job's code: name → hash or version. A parameter or setting that contains a secret is only
    named: the causal log shows the parts, and a rotated secret is not a change of the code.

    Args:
        job: The job, with the parameters of this run.
        conf: The Spark configuration of this run, besides the specification's.
        cluster: The Spark configuration of the cluster. Only its ``spark.sql.`` settings can change what a query
            computes, and the zone and locale of executors; the others, such as addresses, change with the cluster.
    """
    spec = job.spec.spec
    parts = dict(job.files) or {"code": job.code}
    parts["python"] = f"{sys.version_info.major}.{sys.version_info.minor}"
    secret = set(job.spec.metadata.labels.get(RESOLVED_LABEL, "").split(","))

    def part(field: str, name: str, value: str) -> str:
        return _HIDDEN if f"{field}.{name}" in secret or looks_secret(name) else short_hash(value.encode())

    parts |= {f"param {name}": part("params", name, value) for name, value in spec.params.items()}
    of_cluster = {name: value for name, value in (cluster or {}).items() if name.startswith(_OF_QUERIES)}
    settings = {**spec.spark_conf, **conf, **of_cluster}
    parts |= {
        name: part("spark_conf", name, value) for name, value in settings.items() if not name.startswith(_HARMLESS)
    }
    return dict(sorted(parts.items()))


def changed_parts(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return the names of the parts that differ, for messages; empty if `before` is unknown.

    Example:
        >>> changed_parts({"job.py": "a", "package pandas": "2.2"}, {"job.py": "b", "package pandas": "2.3"})
        'job.py, package pandas (2.2, now 2.3)'
    """
    if not before:
        return ""
    names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    return ", ".join(_difference(name, before.get(name), now.get(name)) for name in names)


def _difference(name: str, before: str | None, now: str | None) -> str:
    if before is None or now is None:
        return f"{name} ({'new' if before is None else 'gone'})"
    return f"{name} ({before}, now {now})" if name == "python" or name.startswith("package ") else name
