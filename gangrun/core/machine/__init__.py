"""The state machine of a run: the table of states and events, and the handlers of each state."""
