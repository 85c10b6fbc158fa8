package clonos;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/**
 * Publishes the steps of one task of a live epoch, in the executor that runs the task, and reports them to the driver.
 *
 * <p>The task opens the producers of its lanes. Each must be the next one after the producer that the driver knew, as in
 * {@link LaneTask}: a task that continues after its epoch has failed opens none, or publishes nothing.
 */
final class StepTask implements LiveRows.Publishing, Runnable {
  private static final long REPORT_MS = 200;

  private final StepPass pass;
  private final int task;
  private final List<LanePass.Lane> lanes;
  private volatile StepPublisher publisher; // null: its producers are being opened
  private volatile boolean closed;
  private boolean ended;

  StepTask(StepPass pass, int task) {
    this.pass = pass;
    this.task = task;
    lanes = pass.lanes().isEmpty() ? List.of() : pass.lanes().get(task);
    Thread reporting = new Thread(this, "clonos-live-reports " + task);
    reporting.setDaemon(true);
    List<LaneProducer> producers = new ArrayList<>();
    StepPublisher opened = null;
    try {
      report(false); // the task has begun
      reporting.start();
      for (LanePass.Lane lane : lanes) {
        producers.add(lane.open(pass.connection(), pass.options(lane)));
      }
      opened = new StepPublisher(LivePublisher.keyOf(pass.run(), task), pass.name(), pass.intervalMillis());
      StepMarkers.Lanes begun =
          new StepMarkers.Lanes(
              pass.logTopic(),
              lanes.stream().map(LanePass.Lane::logPartition).toList(),
              lanes.stream().map(LanePass.Lane::logEnd).toList(),
              lanes.stream().map(LanePass.Lane::marker).toList(),
              pass.topicIds(),
              // After the times that the task's Python workers read: these and this one are rounded to a millisecond.
              Math.max(pass.timestampMillis(), System.currentTimeMillis()) + 2);
      opened.begin(producers, begun, System.nanoTime());
      publisher = opened;
      opened.open(); // last: the task's source may wait for it in another thread
    } catch (Exception failure) {
      closed = true;
      if (opened != null) {
        opened.close();
      }
      producers.forEach(LaneProducer::close);
      throw KafkaFailure.typed(pass.name(), failure, "EpochFailed");
    }
  }

  @Override
  public void run() {
    while (!closed) {
      try {
        Thread.sleep(REPORT_MS);
        report(false);
      } catch (Exception away) { // the driver, or this run of the query: the task must not wait for more input
        cut();
      }
    }
  }

  private void cut() {
    StepPublisher opened = publisher;
    if (opened != null) {
      opened.cut();
    }
  }

  private synchronized void report(boolean last) throws Exception {
    if (ended || closed) {
      return;
    }
    ended = last;
    StepPublisher opened = publisher;
    boolean cut =
        opened == null
            ? send(LiveFigures.NONE, Collections.nCopies(lanes.size(), -1L), false, last)
            : send(opened.takeFigures(), opened.newestMarkers(), opened.wantsCut(), last);
    if (cut) {
      cut();
    }
  }

  private boolean send(LiveFigures figures, List<Long> newest, boolean cut, boolean last) throws Exception {
    return new LiveTasks.Report(
            pass.run(), task, RowTransfer.executorId(), figures, new ArrayList<>(newest), cut, last)
        .send();
  }

  @Override
  public void end() {
    publisher.drain();
    try {
      report(true);
    } catch (Exception failure) { // the driver does not know what was published: the next claim reads the markers
      throw KafkaFailure.typed(pass.name(), failure, "EpochFailed");
    }
  }

  @Override
  public void close() {
    closed = true;
    publisher.close();
  }
}
