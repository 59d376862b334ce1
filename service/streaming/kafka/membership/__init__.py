"""This process as a member of its consumer group.

Start with `group`: the member, and the topics that it subscribes to. `assignor` gives each whole topic to one member.
"""
