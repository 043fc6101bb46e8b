import jakarta.transaction.Transaction;
import jakarta.transaction.TransactionManager;
import java.sql.Connection;
import java.sql.PreparedStatement;
import javax.sql.XAConnection;
import javax.transaction.xa.XAResource;
import org.apache.activemq.artemis.api.core.client.ClientConsumer;
import org.apache.activemq.artemis.api.core.client.ClientMessage;
import org.apache.activemq.artemis.api.core.client.ClientProducer;
import org.apache.activemq.artemis.api.core.client.ClientSession;
import org.apache.activemq.artemis.api.core.client.ClientSessionFactory;

/**
 * One worker: in each transaction it consumes a batch of orders, writes a row and produces an invoice for each. What it works
 * with is open from the first transaction to the last: it needs no pool.
 */
final class Worker extends Thread {
    static final String INVOICES = "invoices";
    private static final String INSERT = "INSERT INTO orders (number, customer, cents) VALUES (?, ?, ?)";
    private static final int OCTETS_OF_MESSAGE = 400;
    private static final long DRY_MS = 1_000;

    private final TransactionManager manager;
    private final int batch;
    private final ClientSession session;
    private final ClientConsumer consumer;
    private final ClientProducer producer;
    private final XAConnection database;
    private final XAResource resource;
    private final Connection connection;
    private final PreparedStatement insert;
    private volatile boolean stopped;
    /** Messages whose transactions have been committed. */
    volatile long done;
    /** What ended it before it was told to. */
    volatile Throwable failure;

    Worker(TransactionManager manager, ClientSessionFactory artemis, XAConnection database, String queue, int batch)
            throws Exception {
        this.manager = manager;
        this.batch = batch;
        this.database = database;
        session = artemis.createXASession();
        // so many messages come ahead as our own client asks for: docs/consumers.md
        int ahead = (batch == 1 ? 20 : 2 * batch) * OCTETS_OF_MESSAGE;
        consumer = session.createConsumer(queue, null, ahead, -1, false);
        producer = session.createProducer(INVOICES);
        session.start();
        resource = database.getXAResource();
        connection = database.getConnection();
        insert = connection.prepareStatement(INSERT);
    }

    @Override
    public void run() {
        try {
            while (!stopped) {
                transaction();
            }
            close();
        } catch (Throwable error) {
            failure = error;
        }
    }

    private void transaction() throws Exception {
        manager.begin();
        Transaction transaction = manager.getTransaction();
        transaction.enlistResource(session);
        transaction.enlistResource(resource);
        for (int number = 0; number < batch; number++) {
            ClientMessage message = consumer.receive(DRY_MS);
            if (message == null) {
                throw new IllegalStateException("the queue is empty");
            }
            message.acknowledge();
            Order order = Order.read(message);
            insert.setInt(1, order.number());
            insert.setString(2, order.customer());
            insert.setLong(3, order.cents());
            if (batch > 1) {
                insert.addBatch();
            }
            producer.send(order.message(session));
        }
        if (batch > 1) {
            insert.executeBatch();
        } else {
            insert.executeUpdate();
        }
        manager.commit();
        done += batch;
    }

    /** It ends with the transaction that it is in. */
    void finish() {
        stopped = true;
    }

    private void close() throws Exception {
        insert.close();
        connection.close();
        database.close();
        session.close();
    }
}
