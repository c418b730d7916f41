"""What a simulated world runs on: virtual clock, disk, network and processes."""
