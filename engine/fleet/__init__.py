"""The fleet: which instance serves which request, and how a split hands KV over. Sans-IO.

`fleet.Fleet` takes events and gives actions; `engine/server` drives it over sockets, the simulator on a virtual
clock. One page: docs/fleet.md.
"""
