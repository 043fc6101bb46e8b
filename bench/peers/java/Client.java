import com.arjuna.ats.arjuna.common.CoordinatorEnvironmentBean;
import com.arjuna.ats.arjuna.common.CoreEnvironmentBean;
import com.arjuna.ats.arjuna.common.ObjectStoreEnvironmentBean;
import com.arjuna.ats.internal.arjuna.objectstore.hornetq.HornetqJournalEnvironmentBean;
import com.arjuna.ats.internal.arjuna.objectstore.hornetq.HornetqObjectStoreAdaptor;
import com.arjuna.common.internal.util.propertyservice.BeanPopulator;
import jakarta.transaction.TransactionManager;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.logging.Level;
import java.util.logging.Logger;
import org.apache.activemq.artemis.api.core.QueueConfiguration;
import org.apache.activemq.artemis.api.core.RoutingType;
import org.apache.activemq.artemis.api.core.client.ActiveMQClient;
import org.apache.activemq.artemis.api.core.client.ClientProducer;
import org.apache.activemq.artemis.api.core.client.ClientSession;
import org.apache.activemq.artemis.api.core.client.ClientSessionFactory;
import org.apache.activemq.artemis.api.core.client.ServerLocator;
import org.apache.activemq.artemis.core.io.aio.AIOSequentialFileFactory;
import org.postgresql.xa.PGXADataSource;

/**
 * A client of Narayana (JTA, decisions in ArjunaCore's journal store), Artemis and PostgreSQL: Client PORT FOLDER NANOSECONDS
 * PREPARE, with the database's URL in the environment variable PEER_DATABASE. The journal is set up like that of Artemis, with
 * the same time-out. PREPARE is "together" or "in-turn": whether both branches are prepared at once, in threads of a pool. It
 * takes commands, a line each, from standard input:
 *
 * <pre>
 * fill QUEUE COUNT                          puts orders into a new queue, says "filled"
 * run QUEUE WORKERS BATCH WARM SECONDS      says "begin" and "end" around the time that counts, then the result as JSON
 * </pre>
 */
public class Client {
    private static final String[] CUSTOMERS =
        {"Ada", "Boole", "Church", "Dijkstra", "Erdős", "Floyd", "Gödel", "Hopper"};
    private static final int AT_ONCE = 500;
    private static final int AIO_DEPTH = 500;
    /** Those of ArjunaCore; the one without a name has the decisions. */
    private static final String[] STORES = {null, "communicationStore", "stateStore"};

    private final TransactionManager manager;
    private final ServerLocator locator;
    private final PGXADataSource database;
    private final Random dice = new Random(1);
    private int number;

    public static void main(String[] arguments) throws Exception {
        Logger.getLogger("").setLevel(Level.WARNING);
        Client client = new Client(arguments, URI.create(System.getenv("PEER_DATABASE")));
        System.out.println("ready");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("fill")) {
                client.fill(words[1], Integer.parseInt(words[2]));
                System.out.println("filled");
            } else {
                System.out.println(client.run(words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]),
                    Double.parseDouble(words[4]), Double.parseDouble(words[5])));
            }
        }
        System.exit(0);
    }

    private Client(String[] arguments, URI url) throws Exception {
        configure(arguments[1], Long.parseLong(arguments[2]), arguments[3].equals("together"));
        manager = com.arjuna.ats.jta.TransactionManager.transactionManager();
        locator = ActiveMQClient.createServerLocator("tcp://127.0.0.1:" + arguments[0]);
        // what a transaction sends is answered for by its prepare: no message has to be waited for by itself
        locator.setBlockOnDurableSend(false).setBlockOnAcknowledge(false);
        database = new PGXADataSource();
        database.setURL("jdbc:postgresql://" + url.getHost() + ":" + url.getPort() + url.getPath());
        String[] user = url.getUserInfo().split(":");
        database.setUser(user[0]);
        database.setPassword(user[1]);
        database.setReWriteBatchedInserts(true);
    }

    private static void configure(String folder, long nanoseconds, boolean together) throws Exception {
        BeanPopulator.getDefaultInstance(CoreEnvironmentBean.class).setNodeIdentifier(together ? "together" : "in-turn");
        BeanPopulator.getDefaultInstance(CoordinatorEnvironmentBean.class).setAsyncPrepare(together);
        for (String name : STORES) {
            HornetqJournalEnvironmentBean journal = bean(HornetqJournalEnvironmentBean.class, name);
            journal.setStoreDir(folder + "/" + (name == null ? "decisions" : name));
            journal.setAsyncIO(AIOSequentialFileFactory.isSupported());
            if (journal.isAsyncIO()) {
                journal.setMaxIO(AIO_DEPTH);
            }
            journal.setBufferFlushesPerSecond((int) Math.max(1, 1_000_000_000 / nanoseconds));
            journal.setSyncDeletes(false); // the end of a decision: who forgets it commits again what is committed
            ObjectStoreEnvironmentBean store = bean(ObjectStoreEnvironmentBean.class, name);
            store.setObjectStoreType(HornetqObjectStoreAdaptor.class.getName());
            store.setObjectStoreDir(folder);
        }
    }

    private static <T> T bean(Class<T> kind, String name) throws Exception {
        return name == null ? BeanPopulator.getDefaultInstance(kind) : BeanPopulator.getNamedInstance(kind, name);
    }

    private void create(String queue) throws Exception {
        try (ClientSessionFactory factory = locator.createSessionFactory(); ClientSession session = factory.createSession()) {
            session.createQueue(QueueConfiguration.of(queue).setRoutingType(RoutingType.ANYCAST).setDurable(true));
        }
    }

    private void fill(String queue, int count) throws Exception {
        create(queue);
        try (ClientSessionFactory factory = locator.createSessionFactory();
                ClientSession session = factory.createTransactedSession();
                ClientProducer producer = session.createProducer(queue)) {
            for (int sent = 1; sent <= count; sent++) {
                number++;
                String customer = CUSTOMERS[dice.nextInt(CUSTOMERS.length)];
                producer.send(new Order(number, customer, 100 + dice.nextInt(99_900)).message(session));
                if (sent % AT_ONCE == 0 || sent == count) {
                    session.commit();
                }
            }
        }
    }

    private String run(String queue, int count, int batch, double warm, double seconds) throws Exception {
        List<Worker> workers = new ArrayList<>();
        List<ClientSessionFactory> factories = new ArrayList<>();
        for (int index = 0; index < count; index++) {
            ClientSessionFactory factory = locator.createSessionFactory();
            factories.add(factory);
            workers.add(new Worker(manager, factory, database.getXAConnection(), queue, batch));
        }
        workers.forEach(Thread::start);
        pause(warm);
        long before = done(workers);
        long began = System.nanoTime();
        System.out.println("begin");
        pause(seconds);
        long after = done(workers);
        double took = (System.nanoTime() - began) / 1e9;
        System.out.println("end");
        workers.forEach(Worker::finish);
        for (Worker worker : workers) {
            worker.join();
            if (worker.failure != null) {
                throw new IllegalStateException("a worker has failed", worker.failure);
            }
        }
        factories.forEach(ClientSessionFactory::close);
        forget(queue);
        return String.format("{\"done\": %d, \"seconds\": %f}", after - before, took);
    }

    /** What is left of a run must not burden the next one. */
    private void forget(String queue) throws Exception {
        try (ClientSessionFactory factory = locator.createSessionFactory(); ClientSession session = factory.createSession()) {
            session.deleteQueue(queue);
            session.deleteQueue(Worker.INVOICES);
        }
        create(Worker.INVOICES);
    }

    private static long done(List<Worker> workers) {
        return workers.stream().mapToLong(worker -> worker.done).sum();
    }

    private static void pause(double seconds) throws InterruptedException {
        Thread.sleep((long) (seconds * 1_000));
    }
}
