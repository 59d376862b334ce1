"""The one-shot commands: each asks or tells the servers something and ends."""
