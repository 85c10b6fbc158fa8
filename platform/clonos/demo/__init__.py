"""``clonos demo``: a job that is killed again and again, and a checker that is not told what the job thinks.

- `clonos.demo.story`: what happens in which order.
- `clonos.demo.evidence`, `clonos.demo.checker`: what was seen from outside, and the verdict on it.
- `clonos.demo.producer`, `clonos.demo.reader`: the input, and the output as a reader sees it meanwhile.
- `clonos.demo.victim`: the process that is killed.
- `clonos.demo.plain`: the same job on Spark's own Kafka sink.
- `clonos.demo.screen`: what the user sees.
"""
