package clonos;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.datasources.v2.MicroBatchScanExec;
import org.apache.spark.sql.execution.exchange.ReusedExchangeExec;
import org.apache.spark.sql.execution.exchange.ShuffleExchangeExec;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution;
import scala.jdk.javaapi.CollectionConverters;

/** The executed plan of an epoch as text for Python: one call of Py4J instead of seven for each node. */
public final class PlanTree {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final String LATE = "numRowsDroppedByWatermark"; // Spark's metric

  private PlanTree() {}

  /**
   * The plan of a running query's newest epoch as a JSON object: {@code kind} (the class of the root), {@code children},
   * and of some kinds {@code inputs} (the ranges of a scan), {@code partitions} (of a shuffle) or {@code again} (the plan
   * whose result is used again).
   */
  public static String of(StreamExecution query) throws JsonProcessingException {
    return JSON.writeValueAsString(tree(query.lastExecution().executedPlan()));
  }

  /** The rows that the stateful steps of a running query's newest epoch dropped, because they were behind the watermark. */
  public static long lateRows(StreamExecution query) {
    return lateRows(query.lastExecution().executedPlan());
  }

  private static long lateRows(SparkPlan node) {
    SQLMetric late = CollectionConverters.asJava(node.metrics()).get(LATE);
    long rows = late != null ? late.value() : 0;
    for (SparkPlan child : CollectionConverters.asJava(node.children())) {
      rows += lateRows(child);
    }
    return rows;
  }

  private static Map<String, Object> tree(SparkPlan node) {
    List<Object> children = new ArrayList<>();
    CollectionConverters.asJava(node.children()).forEach(child -> children.add(tree(child)));
    String kind = node.getClass().getSimpleName();
    if (node instanceof MicroBatchScanExec scan) {
      return Map.of("kind", kind, "children", children, "inputs", scan.inputPartitions().toString());
    }
    if (node instanceof ShuffleExchangeExec shuffle) {
      return Map.of("kind", kind, "children", children, "partitions", shuffle.outputPartitioning().numPartitions());
    }
    if (node instanceof ReusedExchangeExec reused) {
      return Map.of("kind", kind, "children", children, "again", tree(reused.child()));
    }
    return Map.of("kind", kind, "children", children);
  }
}
