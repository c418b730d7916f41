"""The supervisor's room, with every port held in the hand."""
