"""Labels that come later: events wait for the records that bring their labels, by their ids.

Start with `memory`: the remembered records of each id, and what a new record means for them. `heaps` has its queues by
time. `join` feeds it with records, keeps the bytes of held events, and says what a head has of all this.
"""
