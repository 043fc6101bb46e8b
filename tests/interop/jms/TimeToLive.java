import jakarta.jms.Connection;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import java.util.Map;

/**
 * A message that nobody takes in time: where it is afterwards. The client itself drops messages whose time is over, without a
 * word, unless it is told not to.
 */
final class TimeToLive implements Use {
    private static final long LIFE_MS = 300;

    @Override
    public Object run(Broker broker) throws Exception {
        try (Connection connection = broker.connect(); Session session = connection.createSession()) {
            MessageProducer producer = session.createProducer(session.createQueue("jms.ttl"));
            producer.setTimeToLive(LIFE_MS);
            producer.send(session.createTextMessage("short"));
            producer.setTimeToLive(0);
            producer.send(session.createTextMessage("long"));
        }
        try (Connection connection = broker.connect("jms.localMessageExpiry=false"); Session session = connection.createSession()) {
            MessageConsumer consumer = session.createConsumer(session.createQueue("jms.ttl.dead"));
            return Map.of("dead", Broker.text(Broker.next(consumer)), "left", broker.take("jms.ttl"));
        }
    }
}
