package clonos.tests;

import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;

import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.shuffle.ShuffleHandle;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import org.apache.spark.shuffle.ShuffleReader;
import org.apache.spark.shuffle.sort.SortShuffleManager;

import scala.Product2;
import scala.jdk.javaapi.CollectionConverters;

/**
 * A fault: each task reads the map outputs of its shuffle in another order, as executors do that fetch them over a
 * network. The system property {@code clonos.tests.fetch} holds the order: {@code ascending}, {@code descending},
 * by default random.
 */
public final class PermutedShuffle extends SortShuffleManager {
    public static final String ORDER = "clonos.tests.fetch";

    public PermutedShuffle(SparkConf conf) {
        super(conf);
    }

    @Override
    public <K, C> ShuffleReader<K, C> getReader(
            ShuffleHandle handle, int startMap, int endMap, int start, int end, TaskContext task,
            ShuffleReadMetricsReporter metrics) {
        List<Integer> maps = new ArrayList<>();
        var located = SparkEnv.get().mapOutputTracker()
                .getMapSizesByExecutorId(handle.shuffleId(), startMap, endMap, start, end);
        CollectionConverters.asJava(located).forEachRemaining(host ->
                CollectionConverters.asJava(host._2()).forEach(block -> maps.add((Integer) block._3())));
        List<Integer> ordered = new ArrayList<>(new java.util.TreeSet<>(maps));
        String order = System.getProperty(ORDER, "random");
        if (order.equals("descending")) {
            Collections.reverse(ordered);
        } else if (order.equals("random")) {
            Collections.shuffle(ordered);
        }
        return () -> CollectionConverters.asScala(new Iterator<Product2<K, C>>() {
            private final Iterator<Integer> left = ordered.iterator();
            private scala.collection.Iterator<Product2<K, C>> current;

            @Override
            public boolean hasNext() {
                while ((current == null || !current.hasNext()) && left.hasNext()) {
                    int map = left.next();
                    current = PermutedShuffle.super.<K, C>getReader(handle, map, map + 1, start, end, task, metrics)
                            .read();
                }
                return current != null && current.hasNext();
            }

            @Override
            public Product2<K, C> next() {
                if (!hasNext()) {
                    throw new NoSuchElementException();
                }
                return current.next();
            }
        });
    }
}
