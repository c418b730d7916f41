"""What must hold in a simulated world after every event."""
