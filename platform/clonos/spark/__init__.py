"""Spark's JVM, session and Python workers, with the settings of Clonos.

Checked on Spark 4.2.1 (pyspark >=4.2, <4.3).

* `session` builds a session with the settings that exactly-once delivery needs, in a JVM that `jvm` starts.
* `user_session` checks and configures a session that the user's program has built.
* `daemon` is the parent of Python workers; `forks` forks Spark's other Python programs from it.
* `classes` compiles the Java classes of Clonos, whose sources are in `java`, and those of sources and sinks.
* `lane_sink` is the road of all epochs to their sinks; `live` has what live epochs add. `source_streams` sets and reads
  what concerns all sources of a query.
* `storage` names the jars of S3. `stored_files` reads and copies files of HDFS and S3, also without a session
  (`file_systems`).
* `aot` trains the ahead-of-time caches of the JVMs.
* `internals` holds the functions over Spark's private API that the rest of the driver calls.

Private Spark API (``_jdf``, ``_jvm``, ``_jsc``, ``_jsparkSession``) belongs here. After an update of Spark, check
`internals`, ``jvm._forget_gateway``, ``session.build_session`` and ``daemon.work``. Few uses are elsewhere:
``causal/logical_plan.py`` and ``formats/poison.py`` read the analyzed plan of a frame, and ``jobs/definition.py``
checks for a stopped session, because these packages may not import this one; ``driver/cluster_check.py``,
``driver/static_inputs.py`` and ``driver/watches.py`` ask the context of the session.

The package must not import `clonos.driver`.
"""
