import jakarta.jms.Connection;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import java.util.LinkedHashMap;
import java.util.Map;

/** A producer without a destination of its own: each message goes where it is sent, if that is allowed. */
final class AnonymousProducers implements Use {
    @Override
    public Object run(Broker broker) throws Exception {
        Map<String, Object> result = new LinkedHashMap<>();
        try (Connection connection = broker.connect(); Session session = connection.createSession()) {
            MessageProducer producer = session.createProducer(null);
            producer.send(session.createQueue("allowed.one"), session.createTextMessage("first"));
            producer.send(session.createQueue("allowed.two"), session.createTextMessage("second"));
            result.put("refusal", Broker.refusal(() ->
                    producer.send(session.createQueue("forbidden"), session.createTextMessage("third"))));
            MessageProducer other = session.createProducer(null);
            other.send(session.createQueue("allowed.one"), session.createTextMessage("fourth"));
        }
        result.put("one", broker.take("allowed.one"));
        result.put("two", broker.take("allowed.two"));
        return result;
    }
}
