package org.apache.spark.sql.execution.python.clonos

import java.io.{BufferedInputStream, ByteArrayOutputStream, DataInputStream, DataOutputStream, IOException, InputStream, InterruptedIOException}
import java.nio.ByteBuffer
import java.nio.channels.SelectionKey
import java.util.ArrayList
import java.util.concurrent.{ArrayBlockingQueue, Semaphore}
import java.util.concurrent.atomic.AtomicBoolean
import java.util.concurrent.locks.LockSupport
import java.util.function.Consumer

import scala.jdk.CollectionConverters._

import _root_.clonos.LiveRows

import org.apache.spark.{SparkEnv, TaskContext}
import org.apache.spark.api.python.{ChainedPythonFunctions, PythonWorker}
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.{SparkSession, SparkSessionExtensions}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Attribute, AttributeSet, PythonUDF, UnsafeProjection}
import org.apache.spark.sql.catalyst.plans.physical.Partitioning
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.catalyst.types.DataTypeUtils
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan, UnaryExecNode}
import org.apache.spark.sql.execution.datasources.v2.RealTimeStreamScanExec
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.execution.python._
import org.apache.spark.sql.execution.python.EvalPythonExec.ArgumentMetadata
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.vectorized.{ArrowColumnVector, ColumnVector, ColumnarBatch}

/**
 * Replaces, in live queries, Spark's operators of Arrow and pandas functions (an extension of the session).
 *
 * Spark's own read their input and the results in one thread, which waits in the source while a result is ready: results
 * would come at the end of the epoch.
 */
class LivePython extends (SparkSessionExtensions => Unit) {
  override def apply(extensions: SparkSessionExtensions): Unit = extensions.injectColumnar(_ => new ColumnarRule {
    override def postColumnarTransitions: Rule[SparkPlan] = new Rule[SparkPlan] {
      override def apply(plan: SparkPlan): SparkPlan =
        if (!plan.exists(_.isInstanceOf[RealTimeStreamScanExec])) plan
        else plan.transformUp {
          case python: ArrowEvalPythonExec =>
            LiveArrowEvalPythonExec(python.udfs, python.resultAttrs, python.child, python.evalType)
          case MapInArrowExec(function: PythonUDF, output, child, _, _) => LiveMapInBatchExec(function, output, child)
          case MapInPandasExec(function: PythonUDF, output, child, _, _) => LiveMapInBatchExec(function, output, child)
        }
    }
  })
}

/** As `ArrowEvalPythonExec`, but its results leave as soon as Python returns them. */
case class LiveArrowEvalPythonExec(udfs: Seq[PythonUDF], resultAttrs: Seq[Attribute], child: SparkPlan, evalType: Int)
    extends EvalPythonExec
    with PythonSQLMetrics {
  override protected def evaluatorFactory: EvalPythonEvaluatorFactory = new LiveEvaluators(
    child.output, udfs, output, evalType, conf.sessionLocalTimeZone, conf.arrowUseLargeVarTypes,
    ArrowPythonRunner.getPythonRunnerConfMap(conf), pythonMetrics)

  override protected def withNewChildInternal(newChild: SparkPlan): SparkPlan = copy(child = newChild)
}

class LiveEvaluators(
    input: Seq[Attribute],
    udfs: Seq[PythonUDF],
    output: Seq[Attribute],
    evalType: Int,
    timeZone: String,
    largeTypes: Boolean,
    settings: Map[String, String],
    metrics: Map[String, SQLMetric])
    extends EvalPythonEvaluatorFactory(input, udfs, output) {
  override def evaluate(
      functions: Seq[(ChainedPythonFunctions, Long)],
      arguments: Array[Array[ArgumentMetadata]],
      rows: Iterator[InternalRow],
      schema: StructType,
      context: TaskContext): Iterator[InternalRow] = {
    val runner = new LiveEvalRunner(functions, evalType, arguments, schema, timeZone, largeTypes, settings, metrics)
    val pump = new Pump(rows, context)
    new Results(pump, runner.compute(pump, context.partitionId(), context))
  }
}

/** As `MapInArrowExec` and `MapInPandasExec`, but the results for a batch leave when Python is done with that batch. */
case class LiveMapInBatchExec(function: PythonUDF, output: Seq[Attribute], child: SparkPlan)
    extends UnaryExecNode
    with PythonSQLMetrics {
  override def producedAttributes: AttributeSet = AttributeSet(output)

  override def outputPartitioning: Partitioning = child.outputPartitioning

  override protected def doExecute(): RDD[InternalRow] = {
    val functions = Seq((ChainedPythonFunctions(Seq(function.func)), function.resultId.id))
    val schema = new StructType().add("struct", DataTypeUtils.fromAttributes(child.output))
    val (columns, kind, timeZone) = (output, function.evalType, conf.sessionLocalTimeZone)
    val (largeTypes, settings) = (conf.arrowUseLargeVarTypes, ArrowPythonRunner.getPythonRunnerConfMap(conf))
    val metrics = pythonMetrics
    child.execute().mapPartitionsInternal { rows =>
      val context = TaskContext.get()
      val runner = new LiveMapRunner(functions, kind, schema, timeZone, largeTypes, settings, metrics)
      val pump = new Pump(rows.map(InternalRow(_)), context)
      val results = new Results(pump, runner.compute(pump, context.partitionId(), context), columns.size)
      results.map(UnsafeProjection.create(columns, columns))
    }
  }

  override protected def withNewChildInternal(newChild: SparkPlan): SparkPlan = copy(child = newChild)
}

/**
 * The rows that Python returns. The pump learns when all results of its batch have left.
 *
 * @param columns 0: a result for each row. Otherwise the number of columns of the struct that Python returns; an empty
 *     result follows the last one of a batch.
 */
class Results(pump: Pump, batches: Iterator[ColumnarBatch], columns: Int = 0) extends Iterator[InternalRow] {
  private var rows: java.util.Iterator[InternalRow] = _
  private var count = 0

  override def hasNext: Boolean = {
    pump.isTakenBy(LiveRows.receiver())
    while (rows == null || !rows.hasNext) {
      if (rows != null) {
        rows = null
        if (columns == 0) pump.left(count) else if (count == 0) pump.allLeft()
      }
      if (!hasResults) {
        pump.ended()
        return false
      }
      val batch = batches.next()
      count = batch.numRows
      rows = (if (columns == 0) batch else fields(batch)).rowIterator
    }
    true
  }

  private def fields(batch: ColumnarBatch): ColumnarBatch = {
    val struct = batch.column(0).asInstanceOf[ArrowColumnVector]
    new ColumnarBatch(Array.tabulate[ColumnVector](columns)(struct.getChild), batch.numRows)
  }

  /** The cause of a failed input, instead of the end of the worker that follows from it. */
  private def hasResults: Boolean =
    try batches.hasNext
    catch { case end: Throwable => throw Option(pump.failure).getOrElse(end) }

  override def next(): InternalRow = {
    hasNext
    rows.next()
  }
}

/**
 * Reads the rows in a thread of its own, and hands them to Python in batches of what is there; a batch holds the rows of
 * whole records. The next batch follows when all results of the last one have left: until then it grows. Its limit follows
 * from how long Python takes, because its rows are published together, and a stop waits for all that was read.
 */
class Pump(rows: Iterator[InternalRow], context: TaskContext) extends Iterator[Iterator[InternalRow]] with Runnable {
  private type Finished = ArrayList[LiveRows.Finished]

  private val most = 10000
  private val longestNanos = 200000000L // that a batch shall take
  @volatile private var limit = 10 // of a batch: rows, and news of records
  @volatile private var entries = 0 // of the batch in Python
  @volatile private var takenAt = 0L
  private val end = new Object
  private val queue = new ArrayBlockingQueue[Object](2 * most)
  private val room = new Object // the thread that reads waits for it
  private val free = new Semaphore(1) // one batch is in Python
  @volatile private var inPython = new Finished // its records
  @volatile private var rowsInPython = 0
  private var rest = new Finished // of records after the last batch
  private var taken = new ArrayList[Object]
  private var hasEnded = false
  private var isOpen = false // whether rows of a record that is not finished were taken
  @volatile private var receiver: Consumer[java.util.List[LiveRows.Finished]] = _
  @volatile private var isKnown = false // whether the thread that takes the results is
  @volatile var failure: Throwable = _ // of the input
  private val thread = new Thread(this, s"clonos-pump ${context.partitionId()}")
  thread.setDaemon(true)
  thread.start()
  context.addTaskCompletionListener[Unit] { _ =>
    if (thread.isAlive) {
      thread.interrupt()
      thread.join(5000)
    }
  }

  /** The thread that takes the results hands the news of finished records to this receiver. */
  def isTakenBy(news: Consumer[java.util.List[LiveRows.Finished]]): Unit = if (!isKnown) {
    receiver = news
    isKnown = true
  }

  /** The results of `size` rows have left, in the calling thread. Spark may divide the results of a batch. */
  def left(size: Int): Unit = {
    rowsInPython -= size
    if (rowsInPython == 0) allLeft()
  }

  /** All results of the batch have left. */
  def allLeft(): Unit = {
    val nanos = System.nanoTime - takenAt
    if (nanos > longestNanos) limit = math.max(1L, math.min(entries, limit) * longestNanos / nanos).toInt
    else if (entries >= limit && nanos < longestNanos / 2) limit = math.min(2 * limit, most)
    wake()
    val finished = inPython
    inPython = new Finished
    if (!finished.isEmpty) LiveRows.finish(finished)
    free.release()
  }

  /** All results have left; the last records had none. */
  def ended(): Unit = if (!rest.isEmpty) {
    LiveRows.finish(rest)
    rest = new Finished
  }

  override def run(): Unit = {
    TaskContext.setTaskContext(context)
    LiveRows.handOver(finished => put(finished))
    try while (rows.hasNext) put(rows.next().copy())
    catch { case failed: Throwable => failure = failed }
    finally try queue.put(end) catch { case _: InterruptedException => }
  }

  private def put(entry: Object): Unit = {
    room.synchronized { while (queue.size >= 2 * limit) room.wait() }
    queue.put(entry)
  }

  private def wake(): Unit = room.synchronized(room.notifyAll())

  override def hasNext: Boolean = {
    if (taken.isEmpty && !hasEnded) {
      free.acquire()
      entries = 0
      val fresh = new ArrayList[Object]
      while (taken.isEmpty && !hasEnded) {
        fresh.add(queue.take())
        queue.drainTo(fresh, limit - 1)
        sort(fresh)
        if (taken.isEmpty && !rest.isEmpty && isKnown) { // nothing is in Python
          LiveRows.finish(rest, receiver)
          rest = new Finished
        }
      }
      while (!hasEnded && isOpen) {
        fresh.add(queue.take())
        sort(fresh)
      }
      if (hasEnded && isOpen && failure == null) failure = new IllegalStateException("the last record is not finished")
      if (!taken.isEmpty) {
        inPython = rest
        rowsInPython = taken.size
        takenAt = System.nanoTime
        rest = new Finished
      }
    }
    if (failure != null) throw new RuntimeException(failure)
    !taken.isEmpty
  }

  private def sort(fresh: ArrayList[Object]): Unit = {
    wake()
    entries += fresh.size
    fresh.forEach {
      case finished: java.util.List[_] =>
        rest.addAll(finished.asInstanceOf[java.util.List[LiveRows.Finished]])
        isOpen = false
      case last if last eq end => hasEnded = true
      case row => taken.add(row); isOpen = true
    }
    fresh.clear()
  }

  override def next(): Iterator[InternalRow] = {
    val batch = taken
    taken = new ArrayList[Object]
    batch.iterator.asScala.map(_.asInstanceOf[InternalRow])
  }
}

class LiveEvalRunner(
    functions: Seq[(ChainedPythonFunctions, Long)],
    evalType: Int,
    arguments: Array[Array[ArgumentMetadata]],
    schema: StructType,
    timeZone: String,
    largeTypes: Boolean,
    settings: Map[String, String],
    metrics: Map[String, SQLMetric])
    extends ArrowPythonWithNamedArgumentRunner(
      functions, evalType, arguments, schema, timeZone, largeTypes, settings, metrics, None, None)
    with LiveRunner

class LiveMapRunner(
    functions: Seq[(ChainedPythonFunctions, Long)],
    evalType: Int,
    schema: StructType,
    timeZone: String,
    largeTypes: Boolean,
    settings: Map[String, String],
    metrics: Map[String, SQLMetric])
    extends ArrowPythonRunner(
      functions, evalType, Array(Array(0)), schema, timeZone, largeTypes, settings, metrics, None, None)
    with LiveRunner {
  override def arrowMaxRecordsPerOutputBatch: Int = 0 // results are not divided: an empty one must arrive

  override def arrowMaxBytesPerOutputBatch: Int = 0
}

/** Sends the batches to Python in a thread of its own. */
trait LiveRunner extends RowInputArrowPythonRunner {
  override protected def newReaderIterator(
      unused: DataInputStream,
      writer: Writer,
      startTime: Long,
      env: SparkEnv,
      worker: PythonWorker,
      pid: Option[Int],
      released: AtomicBoolean,
      context: TaskContext): Iterator[ColumnarBatch] = {
    worker.selectionKey.interestOps(SelectionKey.OP_READ)
    val sender = new Thread(() => send(writer, worker, context), s"clonos-sender ${context.partitionId()}")
    sender.setDaemon(true)
    sender.start()
    context.addTaskCompletionListener[Unit](_ => if (sender.isAlive) sender.interrupt())
    val results = new DataInputStream(new BufferedInputStream(new FromWorker(worker), 65536))
    super.newReaderIterator(results, writer, startTime, env, worker, pid, released, context)
  }

  private def send(writer: Writer, worker: PythonWorker, context: TaskContext): Unit = {
    TaskContext.setTaskContext(context)
    try {
      val bytes = new ByteArrayOutputStream
      val out = new DataOutputStream(bytes)
      writer.open(out)
      var more = true
      while (more) {
        more = writer.writeNextInputToStream(out)
        if (!more) writer.close(out)
        out.flush()
        val buffer = ByteBuffer.wrap(bytes.toByteArray)
        bytes.reset()
        while (buffer.hasRemaining) if (worker.channel.write(buffer) == 0) LockSupport.parkNanos(100000)
      }
    } catch {
      case failure: Throwable =>
        if (!context.isInterrupted()) logError("the input of a Python function failed", failure)
        try worker.channel.close() catch { case _: IOException => }
    }
  }

  /** The results of a worker; Spark's channel does not block. */
  private class FromWorker(worker: PythonWorker) extends InputStream {
    private val single = new Array[Byte](1)

    override def read(): Int = if (read(single, 0, 1) < 0) -1 else single(0) & 0xff

    override def read(bytes: Array[Byte], offset: Int, length: Int): Int = {
      val buffer = ByteBuffer.wrap(bytes, offset, length)
      var count = worker.channel.read(buffer)
      while (count == 0) {
        worker.selector.select()
        worker.selector.selectedKeys.clear()
        if (Thread.interrupted()) throw new InterruptedIOException
        count = worker.channel.read(buffer)
      }
      count
    }
  }
}
