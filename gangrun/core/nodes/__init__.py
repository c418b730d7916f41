"""What is known of nodes: roster, absences, placement, quarantine, device tests, planned replacement."""
