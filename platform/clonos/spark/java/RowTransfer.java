package clonos;

import java.io.InputStream;
import java.io.Serializable;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.PluginContext;

/**
 * Sends the rows of a cluster's tasks, in parts, and the reports of live tasks to the driver, by the messages of Spark's
 * plugins.
 *
 * <p>A task waits for the answer to each part of its rows, and the driver stores a part before it answers. So both hold few
 * rows in memory, also of a large epoch.
 */
final class RowTransfer implements DriverPlugin {
  private static final int PART_BYTES = 256 * 1024;
  private static final String HELLO = "hello";
  private static final String DRIVER = "driver"; // Spark's id of the driver as an executor

  /** Of this executor; null: its session does not have the plugin {@link EpochGuard}. */
  private static volatile PluginContext executor;

  /**
   * Connects an executor to the driver.
   *
   * <p>Spark looks the driver's plugin up at the first message, and never again. So that is not left to a task, which may be
   * interrupted.
   */
  static void connect(PluginContext context) {
    executor = context;
    if (DRIVER.equals(context.executorID())) {
      return; // a local master
    }
    try {
      context.ask(HELLO);
    } catch (Exception failure) {
      throw new IllegalStateException("the driver's plugin clonos.EpochGuard does not answer", failure);
    }
  }

  /** Spark's id of this executor. */
  static String executorId() {
    return driver().executorID();
  }

  /** Sends a message to the driver, and returns its answer ({@link #receive}). */
  static Object ask(Object message) throws Exception {
    return driver().ask(message);
  }

  private static PluginContext driver() {
    PluginContext driver = executor;
    if (driver == null) {
      throw new IllegalStateException("spark.plugins lacks clonos.EpochGuard, which tasks use to reach the driver");
    }
    return driver;
  }

  /** Sends all rows of a task of one start of a query, and returns after the driver has stored them. */
  static void send(String query, long epoch, int partition, InputStream rows) throws Exception {
    byte[] part = rows.readNBytes(PART_BYTES);
    while (part.length > 0) {
      Object refusal = ask(new Part(query, epoch, partition, part));
      if (!"".equals(refusal)) {
        throw new IllegalStateException("the driver does not take the rows: " + refusal);
      }
      part = rows.readNBytes(PART_BYTES);
    }
  }

  /** In the driver: stores a part, and returns the reason if it is refused; else an empty text. */
  @Override
  public Object receive(Object message) {
    try {
      if (message instanceof Part part) {
        LaneSink.find(part.query()).epoch(part.epoch()).receive(part.partition(), part.rows());
      } else if (message instanceof LiveTasks.Report report) {
        return LiveTasks.receive(report);
      }
      return "";
    } catch (RuntimeException refused) { // Spark would log what is thrown here as a failure of its own
      return String.valueOf(refused.getMessage());
    }
  }

  /**
   * Rows of one task.
   *
   * @param query the key of one start of a query ({@link LaneSink#KEY})
   * @param rows a part of {@link Spool#content()}
   */
  private record Part(String query, long epoch, int partition, byte[] rows) implements Serializable {}
}
