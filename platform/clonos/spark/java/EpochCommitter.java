package clonos;

/**
 * The driver's Python code that plans and commits the epochs of one query.
 *
 * <p>Spark's stream thread calls it through the gateway of PySpark, as it calls the function of {@code foreachBatch}.
 */
public interface EpochCommitter {
  /**
   * Plans an epoch, after Spark has written {@code offsets/epoch} and before it starts the epoch's tasks.
   *
   * @param partitions number of partitions of the epoch's rows
   * @return whether the rows are published; false: they are only counted and compared
   */
  boolean begin(long epoch, int partitions);

  /** Publishes the rows that the tasks have spooled, and commits the epoch, before Spark writes {@code commits/epoch}. */
  void commit(long epoch, SpooledEpoch rows);

  /** Discards an epoch whose task or commit failed. */
  void abort(long epoch);
}
