import jakarta.jms.Connection;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import java.util.List;
import java.util.Map;

/** A connection is closed in the middle of a transaction: it is rolled back. */
final class Abandoned implements Use {
    @Override
    public Object run(Broker broker) throws Exception {
        broker.send("jms.abandoned", "one", "two");
        Connection connection = broker.connect();
        Session session = connection.createSession(Session.SESSION_TRANSACTED);
        Queue queue = session.createQueue("jms.abandoned");
        MessageConsumer consumer = session.createConsumer(queue);
        String seen = Broker.text(Broker.next(consumer));
        session.createProducer(queue).send(session.createTextMessage("three"));
        connection.close();
        List<String> left = broker.take("jms.abandoned");
        return Map.of("seen", seen, "left", left);
    }
}
