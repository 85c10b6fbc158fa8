"""``clonos demo``: jobs that are killed again and again, and checkers that are not told what the jobs think.

- `clonos.demo.story`: what happens in which order; `clonos.demo.run`: one job in it.
- `clonos.demo.scenes`: the examples, each with its checker; `clonos.demo.scene`: what the demo has to know of one.
- `clonos.demo.evidence`, `clonos.demo.verdict`: what was seen from outside, and what every verdict is made of.
- `clonos.demo.producer`, `clonos.demo.reader`: the input, and the output as a reader sees it meanwhile.
- `clonos.demo.victim`, `clonos.demo.hosted`: the process that is killed; `clonos.demo.gaps`: how long readers waited.
- `clonos.demo.plain`: wordcount on Spark's own Kafka sink.
- `clonos.demo.screen`: what the user sees.
"""
