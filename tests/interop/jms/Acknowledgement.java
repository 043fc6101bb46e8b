import jakarta.jms.Connection;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Session;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** CLIENT_ACKNOWLEDGE: an acknowledgement covers what was received so far; the rest comes again, and says so. */
final class Acknowledgement implements Use {
    @Override
    public Object run(Broker broker) throws Exception {
        Map<String, Object> result = new LinkedHashMap<>();
        broker.send("jms.acknowledged", "a", "b", "c", "d", "e");
        try (Connection connection = broker.connect()) {
            Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
            MessageConsumer consumer = session.createConsumer(session.createQueue("jms.acknowledged"));
            Broker.next(consumer);
            Broker.next(consumer);
            Message third = Broker.next(consumer);
            third.acknowledge();
            Broker.next(consumer);
            Broker.next(consumer);
            session.recover();
            Message fourth = Broker.next(consumer), fifth = Broker.next(consumer);
            result.put("again", List.of(Broker.delivery(fourth), Broker.delivery(fifth)));
        }
        try (Connection connection = broker.connect()) {
            Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
            MessageConsumer consumer = session.createConsumer(session.createQueue("jms.acknowledged"));
            Message fourth = Broker.next(consumer), fifth = Broker.next(consumer);
            result.put("closed", List.of(Broker.text(fourth), fourth.getJMSRedelivered(), Broker.text(fifth)));
            fifth.acknowledge();
        }
        result.put("left", broker.take("jms.acknowledged"));
        return result;
    }
}
