import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import java.util.Arrays;

/** A message of 40 MB arrives as it was. */
final class Large implements Use {
    @Override
    public Object run(Broker broker) throws Exception {
        byte[] octets = new byte[40 << 20];
        for (int index = 0; index < octets.length; index++) {
            octets[index] = (byte) (index % 1009 * 7);
        }
        try (Connection connection = broker.connect(); Session session = connection.createSession()) {
            Queue queue = session.createQueue("jms.large");
            BytesMessage sent = session.createBytesMessage();
            sent.writeBytes(octets);
            session.createProducer(queue).send(sent);
            BytesMessage message = (BytesMessage) Broker.next(session.createConsumer(queue));
            byte[] received = new byte[(int) message.getBodyLength()];
            message.readBytes(received);
            if (!Arrays.equals(octets, received)) {
                throw new AssertionError("its octets are not those that were sent");
            }
            return received.length;
        }
    }
}
