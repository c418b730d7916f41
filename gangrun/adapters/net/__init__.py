"""The network: ZeroMQ with CURVE, and nothing that listens without it.

``router`` is the supervisor's end with the mailbox where its loop waits, ``agent_net`` an agent's: its line to the
supervisor and its peer socket. What no decoder takes is counted and dropped.
"""
