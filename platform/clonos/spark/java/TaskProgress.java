package clonos;

import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.JobExecutionStatus;
import org.apache.spark.SparkContext;
import org.apache.spark.status.AppStatusStore;
import org.apache.spark.status.api.v1.JobData;
import org.apache.spark.status.api.v1.StageData;
import scala.jdk.javaapi.CollectionConverters;

/** How far the epoch in progress of a query is. */
public final class TaskProgress {
  /** Of each lane that the driver publishes, by its {@code client.id}. */
  private static final Map<String, AtomicLong> ACKNOWLEDGED_BYTES = new ConcurrentHashMap<>();

  private TaskProgress() {}

  /** The number of bytes that a target has acknowledged to a lane in this JVM; what publishes the lane adds them. */
  static AtomicLong acknowledgedBytes(String lane) {
    return ACKNOWLEDGED_BYTES.computeIfAbsent(lane, name -> new AtomicLong());
  }

  /**
   * Returns a text that differs from the previous one if the query's tasks have made progress: a task has ended, or rows
   * were read. While no task runs, records that Kafka acknowledged to the query's lane are progress.
   *
   * <p>Executors report the rows of running tasks with their heartbeats.
   *
   * @param run the run id of the query
   * @param lane the {@code client.id} of the lane that the driver publishes
   */
  public static String of(SparkContext context, String run, String lane) {
    AppStatusStore store = context.statusStore();
    Set<Integer> stages = new HashSet<>();
    for (JobData job : CollectionConverters.asJava(store.jobsList(List.of(JobExecutionStatus.RUNNING)))) {
      if (job.jobGroup().contains(run)) {
        for (Object stage : CollectionConverters.asJava(job.stageIds())) {
          stages.add((Integer) stage);
        }
      }
    }
    if (stages.isEmpty()) {
      return "acknowledged " + acknowledgedBytes(lane);
    }
    StringBuilder progress = new StringBuilder();
    for (StageData stage : CollectionConverters.asJava(store.activeStages())) {
      if (stages.contains(stage.stageId())) {
        long rows = stage.inputRecords() + stage.shuffleReadRecords() + stage.shuffleWriteRecords();
        progress.append(stage.stageId()).append(": ").append(stage.numCompleteTasks()).append(' ').append(rows);
      }
    }
    return progress.toString();
  }
}
