import jakarta.jms.Connection;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import java.util.Map;

/** A delivery delay is kept, or refused: the refusal, and for how long the message was kept back. */
final class Delays implements Use {
    private static final long DELAY_MS = 700;

    @Override
    public Object run(Broker broker) throws Exception {
        try (Connection connection = broker.connect(); Session session = connection.createSession()) {
            Queue queue = session.createQueue("jms.delayed");
            MessageProducer producer = session.createProducer(queue);
            producer.setDeliveryDelay(DELAY_MS);
            long sent = System.nanoTime();
            String refusal = Broker.refusal(() -> producer.send(session.createTextMessage("later")));
            if (refusal != null) {
                return Map.of("refusal", refusal, "left", broker.take("jms.delayed"));
            }
            MessageConsumer consumer = session.createConsumer(queue);
            Broker.next(consumer);
            return Map.of("kept", System.nanoTime() - sent >= DELAY_MS * 1_000_000);
        }
    }
}
