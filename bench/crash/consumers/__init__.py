"""The campaign of consumers: messages that can't be handled in company of others that can, under every setting."""
