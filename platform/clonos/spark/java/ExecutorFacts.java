package clonos;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.InputStream;
import java.util.Map;
import java.util.TreeMap;
import org.apache.hadoop.fs.Path;
import org.apache.spark.SparkEnv;
import org.apache.spark.deploy.SparkHadoopUtil;

/** What an executor is, as JSON; SQL calls it in tasks ({@code clonos.driver.cluster_check}). */
public final class ExecutorFacts {
  private ExecutorFacts() {}

  /**
   * The executor's id, its host, the versions of Spark and Java, and why it cannot read a file.
   *
   * @param probe URI of a file that the driver wrote; empty: none
   */
  public static String describe(String probe) throws JsonProcessingException {
    Map<String, String> facts = new TreeMap<>();
    SparkEnv environment = SparkEnv.get();
    facts.put("executor", environment.executorId());
    facts.put("host", environment.blockManager().blockManagerId().host());
    facts.put("spark", org.apache.spark.package$.MODULE$.SPARK_VERSION());
    facts.put("java", System.getProperty("java.version"));
    facts.put("unreadable", probe.isEmpty() ? "" : unreadable(probe));
    return new ObjectMapper().writeValueAsString(facts);
  }

  private static String unreadable(String probe) {
    Path path = new Path(probe);
    try (InputStream file = path.getFileSystem(SparkHadoopUtil.get().conf()).open(path)) {
      file.read();
      return "";
    } catch (IOException | RuntimeException failure) {
      return failure.toString();
    }
  }
}
