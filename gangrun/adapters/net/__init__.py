"""The network: ZeroMQ with CURVE, and nothing that listens without it.

``router`` is the supervisor's end, ``agent_net`` an agent's (its line to the supervisor and its peer socket);
``mailbox`` is where the supervisor's loop waits. What no decoder takes is counted and dropped.
"""
