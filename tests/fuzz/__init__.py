"""Events and requests that nobody meant to send, against rules written a second time."""
