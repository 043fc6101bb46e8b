import jakarta.jms.Connection;
import jakarta.jms.Destination;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Session;
import jakarta.jms.TemporaryQueue;
import jakarta.jms.TextMessage;
import java.util.HashMap;
import java.util.Map;

/** Requests and replies between two connections, over a temporary queue of one of them. */
final class TemporaryQueues implements Use {
    @Override
    public Object run(Broker broker) throws Exception {
        Map<String, Object> result = new HashMap<>();
        Connection asking = broker.connect(), answering = broker.connect();
        Session session = asking.createSession(), other = answering.createSession();
        TemporaryQueue replies = session.createTemporaryQueue();
        MessageConsumer answers = session.createConsumer(replies);
        MessageConsumer requests = other.createConsumer(other.createQueue("jms.requests"));
        requests.setMessageListener(message -> {
            try {
                TextMessage reply = other.createTextMessage("to " + Broker.text(message));
                reply.setJMSCorrelationID(message.getJMSCorrelationID());
                other.createProducer(message.getJMSReplyTo()).send(reply);
            } catch (Exception error) {
                error.printStackTrace();
            }
        });
        for (String text : new String[] {"one", "two"}) {
            TextMessage request = session.createTextMessage(text);
            request.setJMSReplyTo(replies);
            request.setJMSCorrelationID(text);
            session.createProducer(session.createQueue("jms.requests")).send(request);
            TextMessage answer = (TextMessage) Broker.next(answers);
            result.put(answer.getJMSCorrelationID(), answer.getText());
        }
        Session third = answering.createSession();
        Destination same = third.createQueue(replies.getQueueName());
        answers.close();
        replies.delete();
        String late = Broker.refusal(() -> third.createProducer(same).send(third.createTextMessage("late")));
        result.put("late", late);
        TemporaryQueue left = session.createTemporaryQueue();
        Destination gone = third.createQueue(left.getQueueName());
        asking.close();
        result.put("gone", Broker.refusal(() -> third.createProducer(gone).send(third.createTextMessage("late"))));
        answering.close();
        return result;
    }
}
