package clonos;

/** The named points of a lane's protocol ({@code clonos.faults}) at which a test may stop it; Python implements it. */
public interface LanePoints {
  /**
   * Reports that a task has reached a point.
   *
   * @param task Spark's partition index of the task
   */
  void reach(String point, int task);
}
