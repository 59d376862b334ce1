"""This process in its consumer group.

Start with `group`, the member. `assignor` gives each topic whole to one member, `group_clients` is what the topics of
a member share, and `coordinator` says why a group cannot be joined.
"""
