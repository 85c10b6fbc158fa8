"""The job: its definition in Python, its specification in YAML, the import of its code, its references to secrets.

- `context`: `JobContext`. A job function reads sources and names sinks through it; each sink is one streaming query.
- `definition`: `Job` and the decorator `job`.
- `loading`: loads a job from a Python or YAML file, with the hash of its code.
- `spec`: the specification (``job.yaml``), one schema for files, code, REST and CLI.
- `importing`: imports a job file and reports errors with their line.
- `secret_refs`: ``${secret:NAME}`` in parameters and Spark configuration.

Invariants:

- The job function runs once per driver process and only builds DataFrames. The same code names its operators, sinks and
  decodes in the same order, so a replay finds its determinants (`clonos.causal.naming`).
- A specification never holds a secret's value.
- `spec` and `secret_refs` import no Spark: the control plane and the command line use them.

The package must not import `clonos.driver`, `clonos.spark` or anything above them. Connectors and sinks come through
the entry point groups ``clonos.sources`` and ``clonos.sinks``.
"""
