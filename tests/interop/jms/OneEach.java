import jakarta.jms.Connection;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Session;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** A consumer for each message, as templates make them: each has prefetched all messages, and closes after the first. */
final class OneEach implements Use {
    private static final int MESSAGES = 15;  // more than deliveries in vain after which a message is a dead letter

    @Override
    public Object run(Broker broker) throws Exception {
        List<String> wrong = new ArrayList<>();
        broker.send("jms.template", Broker.numbered("", MESSAGES));
        for (int number = 0; number < MESSAGES; number++) {
            try (Connection connection = broker.connect()) {
                take(connection.createSession(true, Session.SESSION_TRANSACTED), number, wrong);
            }
        }
        broker.send("jms.template", Broker.numbered("", MESSAGES));
        try (Connection connection = broker.connect(); Session shared = connection.createSession()) {
            for (int number = 0; number < MESSAGES; number++) {
                if (number % 2 == 0) {
                    take(shared, number, wrong);
                } else {
                    try (Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE)) {
                        take(session, number, wrong);
                    }
                }
            }
        }
        return Map.of("wrong", wrong, "left", broker.take("jms.template"), "dead", broker.take("jms.template.dead"));
    }

    private static void take(Session session, int number, List<String> wrong) throws Exception {
        try (MessageConsumer consumer = session.createConsumer(session.createQueue("jms.template"))) {
            Message message = Broker.next(consumer);
            message.acknowledge();
            if (session.getTransacted()) {
                session.commit();
            }
            if (!Broker.text(message).equals("" + number) || message.getJMSRedelivered()) {
                wrong.add(Broker.text(message) + " where " + number + " is next");
            }
        }
    }
}
