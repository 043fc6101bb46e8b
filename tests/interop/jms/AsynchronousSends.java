import jakarta.jms.CompletionListener;
import jakarta.jms.Connection;
import jakarta.jms.Message;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** Sends that do not wait, with a listener that hears of each: 15 to a queue that takes 10. */
final class AsynchronousSends implements Use {
    @Override
    public Object run(Broker broker) throws Exception {
        List<String> completed = Collections.synchronizedList(new ArrayList<>());
        List<String> failed = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch heard = new CountDownLatch(15);
        CompletionListener listener = new CompletionListener() {
            @Override
            public void onCompletion(Message message) {
                note(completed, message, "");
            }

            @Override
            public void onException(Message message, Exception error) {
                note(failed, message, " " + error.getClass().getSimpleName());
            }

            private void note(List<String> list, Message message, String more) {
                try {
                    list.add(Broker.text(message) + more);
                } catch (Exception error) {
                    list.add(error.toString());
                }
                heard.countDown();
            }
        };
        try (Connection connection = broker.connect(); Session session = connection.createSession()) {
            MessageProducer producer = session.createProducer(session.createQueue("allowed.full"));
            for (String text : Broker.numbered("", 15)) {
                producer.send(session.createTextMessage(text), listener);
            }
            if (!heard.await(Broker.PATIENCE_MS, TimeUnit.MILLISECONDS)) {
                throw new AssertionError("heard of " + completed + " and " + failed);
            }
        }
        return Map.of("completed", List.copyOf(completed), "failed", List.copyOf(failed),
                "taken", broker.take("allowed.full"));
    }
}
