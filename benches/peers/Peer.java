import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.recipes.lock.LockListener;
import org.apache.zookeeper.recipes.lock.WriteLock;

/**
 * Locks and unlocks with a Java library on commands from standard input, which benches/compare/peer.rs
 * describes. The argument names the library: curator, curator-home or apache.
 */
public final class Peer {
    private static final int SESSION_TIMEOUT_MS = 60_000;

    private interface Cycle {
        void run() throws Exception;
    }

    private interface Client extends AutoCloseable {
        Cycle lock(String dir) throws Exception;
    }

    private final boolean isCurator;
    private final List<Client> clients = new ArrayList<>();
    private final List<Cycle> cycles = new ArrayList<>();
    /** How often `lock` had to be called again because the library missed a release. */
    private final AtomicLong stalls = new AtomicLong();

    private Peer(boolean isCurator) {
        this.isCurator = isCurator;
    }

    public static void main(String[] arguments) throws Exception {
        Peer peer = new Peer(arguments[0].startsWith("curator"));
        // Standard output is for answers only, but some loggers write to it.
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            answers.println(peer.obey(line.split(" ")));
        }
        System.exit(0);
    }

    private String obey(String[] words) throws Exception {
        switch (words[0]) {
            case "prepare":
                prepare(words[1], Integer.parseInt(words[2]), words[3], words[4]);
                return "ready";
            case "run":
                return run(Double.parseDouble(words[1]));
            default:
                for (Client client : clients) {
                    client.close();
                }
                clients.clear();
                cycles.clear();
                return "ended";
        }
    }

    private void prepare(String layout, int count, String connect, String dir) throws Exception {
        // Apache's requests are named after the session, so two threads of one session would share a request.
        boolean isShared = !layout.equals("sessions") && (isCurator || layout.equals("directories"));
        for (int i = 0; i < count; i++) {
            if (i == 0 || !isShared) {
                clients.add(isCurator ? new CuratorClient(connect) : new ApacheClient(connect, count));
            }
            String own = layout.equals("directories") ? dir + "-" + i : dir;
            cycles.add(clients.get(clients.size() - 1).lock(own));
        }
    }

    private String run(double seconds) throws Exception {
        int count = cycles.size();
        long[] done = new long[count];
        long[] starts = new long[count];
        long[] ends = new long[count];
        CyclicBarrier gate = new CyclicBarrier(count);
        List<Thread> threads = new ArrayList<>();
        stalls.set(0);
        for (int i = 0; i < count; i++) {
            int number = i;
            Thread thread = new Thread(() -> {
                try {
                    gate.await();
                    starts[number] = System.nanoTime();
                    long end = starts[number] + (long) (seconds * 1e9);
                    while (System.nanoTime() < end) {
                        cycles.get(number).run();
                        done[number]++;
                    }
                    ends[number] = System.nanoTime();
                } catch (Throwable failure) {
                    failure.printStackTrace();
                    System.exit(1);
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        long sum = 0;
        long start = starts[0];
        long end = ends[0];
        for (int i = 0; i < count; i++) {
            sum += done[i];
            start = Math.min(start, starts[i]);
            end = Math.max(end, ends[i]);
        }
        return String.format(Locale.ROOT, "%d %.6f %d", sum, (end - start) / 1e9, stalls.get());
    }

    private static final class CuratorClient implements Client {
        private final CuratorFramework framework;

        CuratorClient(String connect) throws Exception {
            framework = CuratorFrameworkFactory.builder()
                .connectString(connect)
                .sessionTimeoutMs(SESSION_TIMEOUT_MS)
                .retryPolicy(new ExponentialBackoffRetry(100, 5))
                .build();
            framework.start();
            framework.blockUntilConnected();
        }

        @Override
        public Cycle lock(String dir) {
            InterProcessMutex mutex = new InterProcessMutex(framework, dir);
            return () -> {
                mutex.acquire();
                mutex.release();
            };
        }

        @Override
        public void close() {
            framework.close();
        }
    }

    private final class ApacheClient implements Client {
        private final ZooKeeper zk;
        private final long stallMs;

        ApacheClient(String connect, int count) throws Exception {
            CountDownLatch connected = new CountDownLatch(1);
            zk = new ZooKeeper(connect, SESSION_TIMEOUT_MS, event -> {
                if (event.getState() == KeeperState.SyncConnected) {
                    connected.countDown();
                }
            });
            connected.await();
            // Longer than it takes until all threads have had a turn.
            stallMs = 100 + 25 * count;
        }

        @Override
        public Cycle lock(String dir) throws Exception {
            Semaphore acquired = new Semaphore(0);
            WriteLock lock = new WriteLock(zk, dir, null, new LockListener() {
                @Override
                public void lockAcquired() {
                    acquired.release();
                }

                @Override
                public void lockReleased() {
                }
            });
            return () -> {
                acquired.drainPermits();
                lock.lock();
                // The library waits forever if the request ahead is gone before it sets its watch.
                while (!acquired.tryAcquire(stallMs, TimeUnit.MILLISECONDS)) {
                    stalls.incrementAndGet();
                    lock.lock();
                }
                lock.unlock();
            };
        }

        @Override
        public void close() throws Exception {
            zk.close();
        }
    }
}
