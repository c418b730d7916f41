"""One per node: follows the supervisor of the newest term, starts and stops this node's ranks, and sends heartbeats.

``brain`` decides (values in, effects out, no clock or socket); ``loop`` performs. Nothing of torch, submitit or
``gangrun.adapters`` may enter: wiring hands the sockets, the clock and the lease memory in.
"""
