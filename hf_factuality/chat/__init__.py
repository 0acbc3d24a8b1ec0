"""One way to talk to a model: on a server or in this process."""
