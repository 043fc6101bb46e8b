"""`xabridge broker`: runs the embedded broker, and asks and manages one that runs. docs/broker.md is the manual."""
