import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import java.util.Arrays;
import java.util.List;

/** A message above the broker's limit is refused by an exception, and the connection stays useful. */
final class Excessive implements Use {
    @Override
    public Object run(Broker broker) throws Exception {
        try (Connection connection = broker.connect(); Session session = connection.createSession()) {
            Queue queue = session.createQueue("jms.excessive");
            BytesMessage message = session.createBytesMessage();
            message.writeBytes(new byte[70 << 20]);
            var producer = session.createProducer(queue);
            String refusal = Broker.refusal(() -> producer.send(message));
            var other = session.createProducer(queue);
            other.send(session.createTextMessage("small"));
            return Arrays.asList(refusal, Broker.taken(session.createConsumer(queue)));
        }
    }
}
