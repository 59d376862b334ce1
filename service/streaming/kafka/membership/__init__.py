"""This process as a member of its consumer group.

Start with `group`, the member. `assignor` gives each whole topic to one member.
"""
