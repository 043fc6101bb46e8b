/** One use of JMS. What it returns is its result; what is not as it should be, it throws. */
interface Use {
    Object run(Broker broker) throws Exception;
}
