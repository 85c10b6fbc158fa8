package clonos;

import java.util.Map;
import org.apache.spark.TaskContext;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.api.plugin.SparkPlugin;
import org.apache.spark.util.TaskCompletionListener;

/**
 * Fails each task of an epoch that is not Spark's first attempt at it (docs/adr/0030-an-epoch-fails-whole.md).
 *
 * <p>Spark repeats the tasks of a lost executor by itself, although {@code spark.task.maxFailures} is 1. The first attempt
 * may have published a lane, recorded answers or committed state, and the second one does not know of it.
 *
 * <p>It is also the plugin that tasks use to send rows to the driver ({@link RowTransfer}).
 *
 * <p>As a plugin it covers the tasks that neither read a source, call a causal service nor publish. Spark ignores what a
 * plugin throws at the start of a task. So such a task runs to its end, and its completion listener fails it.
 */
public final class EpochGuard implements SparkPlugin {
  /** Spark's local property with the epoch's scope, which the driver sets ({@code clonos.causal.epoch_scope}). */
  private static final String EPOCH = "clonos.epoch";

  /** Spark's local property of the passes over an epoch's rows that an earlier pass has computed. */
  private static final String COMPUTED = "clonos.computed";

  /** Fails this task if it belongs to an epoch and is not the first attempt. */
  static void requireFirstAttempt() {
    if (isRepeated(TaskContext.get())) {
      throw repeated();
    }
  }

  /** Fails a task that reads a source again. Rows of an earlier pass were lost. */
  static void requireUncomputed() {
    if (isComputed(TaskContext.get())) {
      throw lost();
    }
  }

  /** Fails this task if it has computed its rows from a shuffle, although an earlier pass has computed them. */
  static void requireNoShuffle() {
    TaskContext task = TaskContext.get();
    if (isComputed(task) && task.taskMetrics().shuffleReadMetrics().totalBlocksFetched() > 0) {
      throw lost();
    }
  }

  private static boolean isComputed(TaskContext task) {
    return task != null && task.getLocalProperty(EPOCH) != null && task.getLocalProperty(COMPUTED) != null;
  }

  private static CarriedError lost() {
    return new CarriedError("EpochFailed", "Spark lost rows of the epoch that were computed.", "", "");
  }

  private static boolean isRepeated(TaskContext task) {
    return task != null
        && task.getLocalProperty(EPOCH) != null
        && (task.attemptNumber() > 0 || task.stageAttemptNumber() > 0);
  }

  private static CarriedError repeated() {
    return new CarriedError("EpochFailed", "Spark repeated a task of the epoch.", "", "");
  }

  @Override
  public DriverPlugin driverPlugin() {
    return new RowTransfer();
  }

  @Override
  public ExecutorPlugin executorPlugin() {
    return new Guard();
  }

  private static final class Guard implements ExecutorPlugin {
    @Override
    public void init(PluginContext context, Map<String, String> settings) {
      InterruptedListener.install();
      RowTransfer.connect(context);
    }

    @Override
    public void onTaskStart() {
      TaskContext task = TaskContext.get();
      if (isRepeated(task)) {
        TaskCompletionListener fail =
            ended -> {
              throw repeated();
            };
        task.addTaskCompletionListener(fail);
      }
    }
  }
}
