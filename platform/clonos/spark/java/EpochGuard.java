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

  /** Fails this task if it belongs to an epoch and is not the first attempt. */
  static void requireFirstAttempt() {
    if (isRepeated(TaskContext.get())) {
      throw repeated();
    }
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
