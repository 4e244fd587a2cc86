import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.Socket;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.recipes.lock.LockListener;
import org.apache.zookeeper.recipes.lock.WriteLock;

/**
 * Contends for locks with Apache's and Curator's classes, one thread for each contender, as tests/interop/referee.rs
 * describes. Arguments: the servers, the referee's port, the session timeout in milliseconds, and a PAIR:NAME:KIND for
 * each thread.
 *
 * For tests/interop/revocation.rs, the arguments are a role, the servers and a path. The role "hold" holds a mutex on the
 * path until it is revoked; "revoke" revokes the mutex whose znode is at the path.
 */
public final class Contender {
    /** Runs work under a lock. */
    private interface Kind {
        void locked(String mode, Work work) throws Exception;
    }

    private interface Work {
        void run() throws Exception;
    }

    private static String servers;
    private static int sessionTimeoutMs;

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("hold") || arguments[0].equals("revoke")) {
            takePartInRevocation(arguments[0], arguments[1], arguments[2]);
            return;
        }
        servers = arguments[0];
        int port = Integer.parseInt(arguments[1]);
        sessionTimeoutMs = Integer.parseInt(arguments[2]);
        for (int i = 3; i < arguments.length; i++) {
            String[] words = arguments[i].split(":");
            new Thread(() -> {
                try {
                    contend(port, words[0], words[1], words[2]);
                } catch (Throwable failure) {
                    failure.printStackTrace();
                    Runtime.getRuntime().halt(1);
                }
            }).start();
        }
    }

    private static void takePartInRevocation(String role, String connectString, String path) throws Exception {
        try (CuratorFramework client =
                CuratorFrameworkFactory.newClient(connectString, new ExponentialBackoffRetry(100, 5))) {
            client.start();
            client.blockUntilConnected();
            if (role.equals("revoke")) {
                Revoker.attemptRevoke(client, path);
                return;
            }
            CountDownLatch revoked = new CountDownLatch(1);
            InterProcessMutex mutex = new InterProcessMutex(client, path);
            mutex.makeRevocable(ofMutex -> revoked.countDown());
            mutex.acquire();
            revoked.await();
            mutex.release();
        }
    }

    private static void contend(int port, String pair, String name, String kindName) throws Exception {
        Referee referee = new Referee(port);
        Kind kind = kind(kindName, "/interop/" + pair, referee);
        referee.ask("hello " + pair + " " + name);
        for (String mode = referee.ask("next"); !mode.equals("stop"); mode = referee.ask("next")) {
            kind.locked(mode, () -> {
                referee.ask("enter");
                referee.ask("leave");
            });
        }
    }

    private static Kind kind(String name, String dir, Referee referee) throws Exception {
        if (name.equals("apache")) {
            return apache(dir, referee);
        }
        CuratorFramework client = CuratorFrameworkFactory.builder()
            .connectString(servers)
            .sessionTimeoutMs(sessionTimeoutMs)
            .retryPolicy(new ExponentialBackoffRetry(100, 5))
            .build();
        client.start();
        client.blockUntilConnected();
        switch (name) {
            case "mutex":
                InterProcessMutex mutex = new InterProcessMutex(client, dir);
                return (mode, work) -> run(mutex, work);
            case "read-write":
                InterProcessReadWriteLock lock = new InterProcessReadWriteLock(client, dir);
                return (mode, work) -> run(mode.equals("read") ? lock.readLock() : lock.writeLock(), work);
            case "latch":
                return (mode, work) -> {
                    try (LeaderLatch latch = new LeaderLatch(client, dir)) {
                        latch.start();
                        latch.await();
                        work.run();
                    }
                };
            case "selector":
                return selector(client, dir);
            case "semaphore":
                // As many permits as in tests/interop/pairs.rs.
                InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(client, dir, 2);
                return (mode, work) -> {
                    Lease lease = semaphore.acquire();
                    work.run();
                    semaphore.returnLease(lease);
                };
            default:
                throw new IllegalArgumentException(name);
        }
    }

    private static void run(InterProcessLock lock, Work work) throws Exception {
        lock.acquire();
        work.run();
        lock.release();
    }

    private static Kind selector(CuratorFramework client, String dir) {
        return (mode, work) -> {
            CountDownLatch led = new CountDownLatch(1);
            LeaderSelector selector = new LeaderSelector(client, dir, new LeaderSelectorListenerAdapter() {
                @Override
                public void takeLeadership(CuratorFramework ofLeader) throws Exception {
                    work.run();
                    led.countDown();
                }
            });
            selector.start();
            led.await();
            selector.close();
        };
    }

    private static Kind apache(String dir, Referee referee) throws Exception {
        CountDownLatch connected = new CountDownLatch(1);
        ZooKeeper zk = new ZooKeeper(servers, sessionTimeoutMs, event -> {
            if (event.getState() == KeeperState.SyncConnected) {
                connected.countDown();
            }
        });
        connected.await();
        return (mode, work) -> {
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
            lock.lock();
            // The library waits forever if the request ahead is gone before it sets its watch.
            while (!acquired.tryAcquire(500, TimeUnit.MILLISECONDS)) {
                if (lock.lock()) {
                    referee.ask("missed");
                }
            }
            work.run();
            // A late event must not join the queue again.
            synchronized (lock) {
                lock.unlock();
                lock.close();
            }
        };
    }

    private static final class Referee {
        private final BufferedReader answers;
        private final PrintStream questions;

        Referee(int port) throws IOException {
            Socket socket = new Socket("127.0.0.1", port);
            socket.setTcpNoDelay(true);
            answers = new BufferedReader(new InputStreamReader(socket.getInputStream()));
            questions = new PrintStream(socket.getOutputStream(), true);
        }

        synchronized String ask(String question) throws IOException {
            questions.print(question + "\n");
            questions.flush();
            String answer = answers.readLine();
            if (answer == null) {
                Runtime.getRuntime().halt(0);
            }
            return answer;
        }
    }
}
