"""``clonos demo``: kills running jobs and checks from outside that every result was published exactly once.

- `clonos_demo.demo`: the sequence of a demo; `clonos_demo.run`: one job in it.
- `clonos_demo.example`: an example as the demo runs it. Its checker is ``examples/<name>/check.py``.
- `clonos_demo.evidence`, `clonos_demo.verdict`: input, answers and output as seen from outside the job; the checks that
  all checkers share.
- `clonos_demo.producer`, `clonos_demo.reader`: the input at a steady pace; the output with the time of each arrival.
- `clonos_demo.direct`, `clonos_demo.hosted`: a job as a child process, or on a control plane.
- `clonos_demo.gaps`: the time that readers waited after each kill; `clonos_demo.screen`: the display.
- `clonos_demo.plain`: wordcount on Spark's own Kafka sink, for comparison.
- `clonos_demo.environment`: Kafka, topics, the HTTP server and directories of a demo.

Invariants:

- A verdict rests on evidence from outside the job: records that Kafka acknowledged to the producer, answers that the
  HTTP server recorded before it sent them, and published records that a read_committed reader got. The job's own
  counters are displayed and never judged.
- A checker is pure: `clonos_demo.evidence.Evidence` in, `clonos_demo.verdict.Verdict` out.
- Kills come from outside, with SIGKILL, through `clonos.testing.harness`.

The package must not import the driver, Spark or `clonos_api`. `clonos demo` comes through an entry point of the group
``clonos.commands``.
"""
