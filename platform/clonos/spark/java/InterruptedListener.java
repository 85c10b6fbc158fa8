package clonos;

import java.lang.Thread.UncaughtExceptionHandler;
import java.nio.channels.ClosedByInterruptException;

/**
 * Keeps an executor alive when Spark kills a task with a Python state processor.
 *
 * <p>Such a task has a thread that waits for connections of its Python worker. Spark 4.2 interrupts that thread, and does
 * not catch the exception (TransformWithStateInPySparkStateServer; a later version does, SPARK-58977). Spark's handler then
 * ends the executor. A promoted standby, whose rehearsal is stopped in such a task, would lose all executors that it has
 * warmed.
 */
final class InterruptedListener implements UncaughtExceptionHandler {
  private static final String LISTENER = "stateConnectionListenerThread";

  private final UncaughtExceptionHandler others;

  private InterruptedListener(UncaughtExceptionHandler others) {
    this.others = others;
  }

  /** Handle this one exception, and leave all others to the handler that is set now. */
  static void install() {
    UncaughtExceptionHandler current = Thread.getDefaultUncaughtExceptionHandler();
    if (current != null && !(current instanceof InterruptedListener)) {
      Thread.setDefaultUncaughtExceptionHandler(new InterruptedListener(current));
    }
  }

  @Override
  public void uncaughtException(Thread thread, Throwable error) {
    if (!(error instanceof ClosedByInterruptException && LISTENER.equals(thread.getName()))) {
      others.uncaughtException(thread, error);
    }
  }
}
