"""Functions over Spark's private Python and JVM API, for the rest of the driver."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from py4j.clientserver import ClientServer
from py4j.java_gateway import JavaClass, JavaObject
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession


def running_query(spark: SparkSession) -> Any:
    """Return the JVM's ``StreamExecution`` of the query whose epoch runs in this thread."""
    query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    return spark._jsparkSession.streams().get(query_id).streamingQuery()


def executed_plan(spark: SparkSession, query: Any) -> str:
    """Return the plan of the newest epoch of a running query (`running_query`), as JSON (`clonos.PlanTree` in Java)."""
    text: str = jvm_of(spark).clonos.PlanTree.of(query)
    return text


def late_rows(spark: SparkSession, query: Any) -> int:
    """Return the rows that stateful steps of the newest epoch of a running query dropped, because the watermark had
    passed.

    An aggregation counts the groups of each partition instead of the rows, because it adds them up before it drops.
    0 if they cannot be read: the epoch is published, and must not fail for its figures.
    """
    try:
        return int(jvm_of(spark).clonos.PlanTree.lateRows(query))
    except Py4JError:
        return 0


def analyzed_plan(frame: DataFrame) -> Any:
    """Return a DataFrame's analyzed plan, a JVM object."""
    return frame._jdf.queryExecution().analyzed()


def analyzed_leaves(frame: DataFrame) -> list[Any]:
    """Return the leaves (sources) of a DataFrame's analyzed plan, as JVM objects."""
    leaves: Any = analyzed_plan(frame).collectLeaves()
    return [leaves.apply(index) for index in range(leaves.size())]


def set_login_user(name: str) -> None:
    """Set the user of Hadoop's file systems, before a session exists.

    Hadoop asks the operating system for the name of this process's user, and fails if the user has no account.
    """
    SparkContext._ensure_initialized()
    users = SparkContext._jvm.org.apache.hadoop.security.UserGroupInformation  # type: ignore[union-attr]
    users.setLoginUser(users.createRemoteUser(name))


def task_slots(spark: SparkSession) -> int:
    """Return how many tasks can run at once; ``spark.task.cpus`` divides them, and no other setting changes them."""
    context: Any = spark._jsparkSession.sparkContext()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def start_callbacks(spark: SparkSession) -> None:
    """Start the server that lets the JVM call functions of this process, with the gateway's token.

    PySpark starts it without a token: each user of the machine could call the functions. A server that the user's own
    program has started stays as it is, because calls may be in progress.
    """
    gateway: Any = spark.sparkContext._gateway
    if gateway.__dict__.get("_callback_server") is not None:
        return
    # With PYSPARK_PIN_THREAD=false, Py4J has another gateway, and other clients in the JVM.
    token = gateway.java_parameters.auth_token if isinstance(gateway, ClientServer) else None
    if token is not None:
        gateway.python_parameters.auth_token = token
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    if token is not None:
        server = JavaObject("GATEWAY_SERVER", gateway._gateway_client)
        jvm_of(spark).clonos.Callbacks.authenticate(server, gateway._callback_server.port, token)


def repartition_state(spark: SparkSession, checkpoint: str, partitions: int) -> None:
    """Repartition the state in the checkpoint of a query that does not run, as a new epoch without input.

    The interface is experimental in Spark 4.2; `tests/integration/jobs/test_rescaling.py` pins what this uses of it.

    Raises:
        Py4JJavaError, PySparkException: Spark refuses the state or the checkpoint, or the work failed.
    """
    spark._jsparkSession.streams()  # creates the coordinator of state stores, which otherwise the first query does
    spark._streamingCheckpointManager.repartition(checkpoint, partitions)


class _Package:
    """A Java package. Its classes begin with a capital letter.

    Py4J's own packages ask the JVM about each part of a name, and the JVM searches all jars for a class of the name of
    each package. A name such as ``org.apache.hadoop.fs.Path`` takes 0.8 ms in this way, and a takeover uses hundreds.
    """

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self._name = name

    def __getattr__(self, part: str) -> Any:
        if part.startswith("__"):
            raise AttributeError(part)
        name = f"{self._name}.{part}"
        return JavaClass(name, self._client) if part[:1].isupper() else _Package(self._client, name)


class _Jvm:
    """The packages of a JVM; a class without a package is one that PySpark imported."""

    def __init__(self, view: Any) -> None:
        self._view = view

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name) if name[:1].isupper() else _Package(self._view._gateway_client, name)


@contextlib.contextmanager
def local_property(spark: SparkSession, name: str, value: str | None) -> Iterator[None]:
    """Set a local property of Spark inside the context, for the queries that start there."""
    spark.sparkContext.setLocalProperty(name, value)  # type: ignore[arg-type]  # None removes it
    try:
        yield
    finally:
        spark.sparkContext.setLocalProperty(name, None)  # type: ignore[arg-type]


def jvm_of(spark: SparkSession) -> Any:
    """Return the packages of the session's JVM: ``jvm_of(spark).java.lang.Thread`` is a class."""
    return _Jvm(spark._jvm)


_loaded: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def has_class(spark: SparkSession, name: str) -> bool:
    """Whether the session's JVM can load the class, as Spark looks up a format."""
    loaded = _loaded.setdefault(spark._jvm, set())
    if name not in loaded:
        try:
            jvm_of(spark).java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
        except Py4JError:
            return False
        loaded.add(name)
    return True


def hadoop_configuration(spark: SparkSession) -> Any:
    """Return the Hadoop configuration of the session, as a JVM object."""
    return spark._jsc.hadoopConfiguration()


def java_pattern(spark: SparkSession, text: str) -> Any:
    """`text` as a ``java.util.regex.Pattern``.

    Raises:
        Py4JJavaError, IllegalArgumentException: `text` is not a regular expression of Java.
    """
    return jvm_of(spark).java.util.regex.Pattern.compile(text)
