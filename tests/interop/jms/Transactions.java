import jakarta.jms.Connection;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import java.util.List;
import java.util.Map;

/** Transacted sessions: what is sent and received counts with the commit, and is as if it had not been after a rollback. */
final class Transactions implements Use {
    @Override
    public Object run(Broker broker) throws Exception {
        try (Connection connection = broker.connect()) {
            Session session = connection.createSession(Session.SESSION_TRANSACTED);
            Queue queue = session.createQueue("jms.transacted");
            MessageProducer producer = session.createProducer(queue);
            producer.send(session.createTextMessage("lost"));
            session.rollback();
            producer.send(session.createTextMessage("a"));
            producer.send(session.createTextMessage("b"));
            List<String> early = broker.take("jms.transacted");
            session.commit();
            MessageConsumer consumer = session.createConsumer(queue);
            List<Object> first = List.of(Broker.delivery(Broker.next(consumer)), Broker.delivery(Broker.next(consumer)));
            session.rollback();
            List<Object> again = List.of(Broker.delivery(Broker.next(consumer)), Broker.delivery(Broker.next(consumer)));
            MessageProducer answers = session.createProducer(session.createQueue("jms.answers"));
            answers.send(session.createTextMessage("answer"));
            List<String> before = broker.take("jms.answers");
            session.commit();
            consumer.close();
            return Map.of("early", early, "first", first, "again", again, "before", before,
                    "answers", broker.take("jms.answers"), "left", broker.take("jms.transacted"));
        }
    }
}
