import org.apache.activemq.artemis.api.core.ActiveMQBuffer;
import org.apache.activemq.artemis.api.core.client.ClientMessage;
import org.apache.activemq.artemis.api.core.client.ClientSession;

/** One order of the shop, as xabridge/demo/shop/orders.py has it, in a message of Artemis' Core protocol. */
record Order(int number, String customer, long cents) {
    private static final String ID = "id";

    static Order read(ClientMessage message) {
        ActiveMQBuffer body = message.getBodyBuffer();
        return new Order(body.readInt(), body.readString(), body.readLong());
    }

    /** The message that it travels in, as an order or as an invoice. */
    ClientMessage message(ClientSession session) {
        ClientMessage message = session.createMessage(true);
        message.putStringProperty(ID, "order-" + number);
        message.getBodyBuffer().writeInt(number);
        message.getBodyBuffer().writeString(customer);
        message.getBodyBuffer().writeLong(cents);
        return message;
    }
}
