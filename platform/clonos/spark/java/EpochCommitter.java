package clonos;

/**
 * The driver's Python code that plans and commits the epochs of one query.
 *
 * <p>Spark's stream thread calls it through the gateway of PySpark.
 */
public interface EpochCommitter {
  /**
   * Plans an epoch, after Spark has written {@code offsets/epoch} and before it starts the epoch's tasks.
   *
   * @param partitions number of partitions of the epoch's rows
   * @return a {@link TaskPlan} as JSON
   */
  String begin(long epoch, int partitions);

  /** Publishes the rows that the tasks have not published, and commits the epoch, before Spark writes {@code commits/epoch}. */
  void commit(long epoch, SpooledEpoch rows);

  /** Discards an epoch whose task or commit failed. */
  void abort(long epoch);

  /**
   * Reports that a task has reached a named point of the protocol ({@code clonos.faults}), at which a test may stop it.
   *
   * @param task Spark's partition index of the task
   */
  void reach(String point, int task);
}
