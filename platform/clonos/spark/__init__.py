"""Spark's JVM, session and Python workers, with the settings of Clonos.

Checked on Spark 4.2.1 (pyspark >=4.2, <4.3).

* `session` builds a session with the settings that exactly-once delivery needs, in a JVM that `jvm` starts.
* `user_session` checks and configures a session that the user's program has built.
* `daemon` is the parent of Python workers; `forks` forks Spark's other Python programs from it.
* `classes` compiles the Java classes of Clonos, whose sources are in `java`.
* `storage` names the jars of S3. `stored_files` reads and copies files of HDFS and S3, also without a session
  (`file_systems`).
* `aot` trains the ahead-of-time caches of the JVMs.
* `internals` holds the functions over Spark's private API that the rest of the driver calls.

Only this package uses private Spark API (``_jdf``, ``_jvm``, ``_jsc``, ``_jsparkSession``). After an update of Spark,
check `internals`, ``jvm._forget_gateway``, ``session.build_session`` and ``daemon.work``. The packages `causal`,
`formats` and `jobs` may not import this one. Their few uses are ``_parse_datatype_string``, the analyzed plan of a
frame, and the check for a stopped session.

The package must not import `clonos.driver`.
"""
