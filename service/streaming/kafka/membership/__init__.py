"""This process as a member of its consumer group.

Start with `group`, the member. `requested_topics` finds or creates the topics that it subscribes to. `assignor` gives
each whole topic to one member.
"""
